"""A folder with a trained head is recognised, and its head shares the mixed tree."""

from __future__ import annotations

import pytest
from eagle_folders import LAYOUTS
from head_folders import write_dflash, write_medusa, write_speculators

from branchwise.draft import MixedDrafter, make_drafter
from branchwise.draft.head import head_kind
from branchwise.draft.head_config import HeadCheckpointError
from loop_rig import greedy_request, run_greedy, start_session
from oracles import greedy_by_recompute
from zoo import tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_eagle_folders(tmp_path, layout):
    assert head_kind(LAYOUTS[layout]().write(tmp_path), allow_pickle=True) == "eagle"


@pytest.mark.parametrize(
    "write, kind", [(write_medusa, "medusa"), (write_dflash, "block"), (write_speculators, "block")]
)
def test_other_folders(tmp_path, write, kind):
    assert head_kind(write(tmp_path)) == kind


def test_a_folder_without_a_head(tmp_path):
    with pytest.raises(HeadCheckpointError, match=r"config\.json"):
        head_kind(tmp_path)


@pytest.mark.parametrize("name", ["mixed", "auto"])
@pytest.mark.parametrize("kind, write", [("medusa", write_medusa), ("block", write_dflash)])
def test_a_head_is_one_source_of_the_mixed_tree(tmp_path, name, kind, write):
    model = tiny_llama()
    drafter = make_drafter(name, target=model, head=write(tmp_path))
    assert isinstance(drafter, MixedDrafter)
    assert [source.name for source in drafter.sources] == ["ngram", "recycling", kind]
    written = run_greedy(start_session(model, drafter, 9), [greedy_request(PROMPT, 24)])
    assert written == [greedy_by_recompute(model, PROMPT, 24)]


def test_a_head_needs_its_target(tmp_path):
    with pytest.raises(ValueError, match="'mixed' works inside a target"):
        make_drafter("mixed", head=write_medusa(tmp_path))
    with pytest.raises(ValueError, match="has no such option"):
        make_drafter("ngram", target=tiny_llama(), head=write_medusa(tmp_path))
