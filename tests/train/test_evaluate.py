"""Evaluation: what is counted, from trees drawn by hand, and a whole run beside a head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from branchwise.decode.statistics import Generation, StepSeconds
from branchwise.draft.protocol import StepRecord
from branchwise.train.evaluate import BestChain, Counts, HeadFolder
from branchwise.train.evaluation_report import table
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

#        0
#      /   \
#     1     2
#    / \     \
#   3   4     5
TREE = TokenTree((9, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 1, 2))


def record(*path: int) -> StepRecord:
    return StepRecord(DraftTree.deterministic(TREE), Verdict(path, 7), (0,) * len(path))


def counted(*paths: tuple[int, ...]) -> dict:
    records = tuple(record(*path) for path in paths)
    tokens = tuple(token for r in records for token in r.tokens)
    seconds = (StepSeconds(0.0, 0.5, 0.0, 0.0, 0.5),) * len(records)
    counts = Counts()
    counts.add(Generation(tokens, 1, "length", "max_new_tokens", None, records, seconds, 0.0))
    return counts.as_dict()


def test_acceptance_by_depth_and_rank() -> None:
    found = counted((0,), (0, 1), (0, 2), (0, 2, 5), (0, 1, 4))
    assert found["tokens_per_step"] == 2.2 and found["tokens_per_second"] == 2.2 and found["forward_share"] == 0.5
    first, second = found["depths"]
    assert (first["asked"], first["accepted"]) == (5, 0.8) and first["by_rank"][:3] == [0.4, 0.4, 0.0]
    assert (second["asked"], second["accepted"]) == (4, 0.5) and second["by_rank"][:3] == [0.25, 0.25, 0.0]


def test_a_path_that_reaches_a_leaf_is_not_asked_further() -> None:
    assert [row["depth"] for row in counted((0, 2, 5))["depths"]] == [1, 2]


def test_the_best_chain_follows_first_children() -> None:
    class Fixed:
        name = "fixed"
        feature_layers = ()

        def propose(self, states, contexts, budgets):
            return [DraftTree.deterministic(TREE)]

    chain = BestChain(Fixed())
    assert chain.propose([None], [None], [65])[0].tree.tokens == (9, 1, 3)
    assert chain.propose([None], [None], [2])[0].tree.tokens == (9, 1)


def test_the_kind_of_a_head(tmp_path: Path) -> None:
    for keys, kind in (({"medusa_num_heads": 3}, "medusa"), ({"block_size": 4}, "block"), ({}, "eagle")):
        (tmp_path / "config.json").write_text(json.dumps(keys))
        assert HeadFolder.open(tmp_path).kind == kind
    with pytest.raises(ValueError, match="no head"):
        HeadFolder.open(tmp_path / "elsewhere")


def test_the_table_reads_as_the_figures() -> None:
    settings = {"plain": {**counted((0,)), "equal": 1, "prompts": 1}}
    settings["tree-9"] = {**counted((0, 2, 5), (0,)), "equal": 1, "prompts": 1}
    lines = list(table(settings))
    assert lines[2].split() == ["tree-9", "2.00", "2.0", "2.00", "50%", "1/1"]
    assert any(line.startswith("depth 1") and line.split()[2:5] == ["0.000", "0.500", "0.000"] for line in lines)
