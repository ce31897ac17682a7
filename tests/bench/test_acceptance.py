"""Acceptance by depth and rank, counted by hand."""

from __future__ import annotations

import pytest

from branchwise.bench.acceptance import count_acceptance
from branchwise.draft.protocol import StepRecord
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

pytestmark = pytest.mark.core


def step(parents: tuple[int, ...], path: tuple[int, ...]) -> StepRecord:
    draft = DraftTree.deterministic(TokenTree(range(len(parents)), parents))
    return StepRecord(draft, Verdict(path, 7), (7,))


def test_only_children_of_accepted_nodes_had_a_chance() -> None:
    # 0 - 1 - 3    node 2 is rejected; what hangs below it says nothing
    #   \ 2 - 4
    found = count_acceptance([step((-1, 0, 0, 1, 2), (0, 1)), step((-1, 0, 0, 1, 2), (0, 2, 4)), step((-1,), (0,))])
    assert found["depth"] == [{"accepted": 2, "of": 2}, {"accepted": 1, "of": 2}]
    assert found["rank"] == [{"accepted": 2, "of": 4}, {"accepted": 1, "of": 2}]


def test_nothing_drafted() -> None:
    assert count_acceptance([step((-1,), (0,))]) == {"depth": [], "rank": []}
