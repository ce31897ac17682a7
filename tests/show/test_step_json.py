"""Steps as JSON objects, against one written by hand."""

from __future__ import annotations

import json

import pytest
import torch

from branchwise.show import generation_step, step_json, tree_json
from branchwise.tree import TokenGraph, TokenTree
from branchwise.verify.proposal import ONE_HOT, DraftTree, Sampled
from branchwise.verify.rule import Verdict
from show_rig import DRAFT, RECORD, SECONDS, TREE, Words, generation_of, random_generation

pytestmark = pytest.mark.core


def node(token: int, text: str, parent: int, depth: int, source: str, draft: float, target: float | None, kept: bool):
    return {
        "id": token,
        "text": text,
        "cells": len(text),
        "parent": parent,
        "depth": depth,
        "source": source,
        "draft": draft,
        "target": target,
        "accepted": kept,
    }


def test_a_step_by_hand() -> None:
    told = step_json(RECORD, Words(), seconds=SECONDS, budget=9, committed=12)
    # a root has no drafter
    root = node(0, "the", -1, 0, None, None, None, True)  # type: ignore[arg-type]
    assert told["nodes"] == [
        root,
        node(1, "·cat", 0, 1, "ngram", 0.9, 0.75, True),
        node(2, "·dog", 0, 1, "recycling", 0.25, 0.125, False),
        node(3, "·ran", 1, 2, "recycling", 0.1, None, False),  # 0.09 of the parent's 0.9
        node(4, "·sat", 1, 2, "ngram", 0.5, 0.5, True),
    ]
    assert told["path"] == [0, 1, 4]
    assert told["bonus"] == {"id": 5, "text": "↵", "cells": 1, "source": "target"}
    assert (told["emitted"], told["budget"], told["committed"]) == (3, 9, 12)
    assert told["ms"] == {"draft": 1.0, "forward": 30.0, "rule": 2.0, "commit": 0.5, "other": 0.1}
    assert json.loads(json.dumps(told)) == told


def test_what_nobody_told_is_null() -> None:
    bare = DraftTree.deterministic(TREE)
    told = step_json(type(RECORD)(bare, Verdict((0,), 5), (5,)))
    assert {(entry["source"], entry["draft"], entry["target"]) for entry in told["nodes"]} == {(None, None, None)}
    assert told["ms"] is told["budget"] is told["committed"] is None
    assert [entry["text"] for entry in told["nodes"]] == ["0", "1", "2", "3", "4"], "ids without a tokenizer"


def test_a_sampled_child_has_the_probability_it_was_drawn_with() -> None:
    vector = torch.tensor([0.0, 0.125, 0.5, 0.25, 0.125], dtype=torch.float64)
    tree = TokenTree((0, 2, 3, 1), (-1, 0, 0, 1))
    draft = DraftTree(tree, (Sampled(vector), Sampled(vector), ONE_HOT))
    told = step_json(type(RECORD)(draft, Verdict((0,), 1), (1,)))
    assert [entry["draft"] for entry in told["nodes"]] == [None, 0.5, 0.25, None]


def test_a_run_that_stopping_cut() -> None:
    cut = step_json(type(RECORD)(DRAFT, Verdict((0, 1, 4), 5), (1,)))
    assert cut["emitted"] == 1 and cut["path"] == [0, 1, 4]


def test_a_tree_and_a_graph_that_nobody_judged() -> None:
    plain = tree_json(TREE)
    assert plain["path"] == [] and plain["bonus"] is None
    assert [entry["parent"] for entry in plain["nodes"]] == [-1, 0, 0, 1, 1]
    assert tree_json(DRAFT)["nodes"][3]["source"] == "recycling"
    graph = tree_json(TokenGraph((5, 6, 7, 8), [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert graph["nodes"][3]["parents"] == [1, 2] and graph["nodes"][3]["parent"] == 1
    assert "parents" not in graph["nodes"][2]


def test_steps_of_a_generation_know_what_was_committed() -> None:
    generation = random_generation(2, 5, 12)
    committed = [generation_step(generation, number)["committed"] for number in range(5)]
    lengths = [len(record.tokens) for record in generation.records]
    assert committed == [2 + sum(lengths[:number]) for number in range(5)]
    with pytest.raises(ValueError, match="no step 5: the generation has 5"):
        generation_step(generation, 5)
    with pytest.raises(ValueError, match="no step -1"):
        generation_step(generation_of([RECORD]), -1)
