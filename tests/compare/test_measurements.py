"""Measurements on a tiny model: what they count is compared with what is known without them. No time is asserted."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from branchwise.compare import bound, cost, inputs, logits, masks, parallel, reuse, rows, shares, steps
from branchwise.compare.effort import QUICK
from branchwise.compare.runs import Runs, run_all
from branchwise.compare.subject import Subject
from branchwise.compare.witness import watching
from branchwise.hub import load
from branchwise.tree import TokenTree
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core

SMALL = replace(
    QUICK,
    new_tokens=24,
    sweep_tokens=12,
    depths=(1, 3),
    widths=(2,),
    nodes=(1, 4, 8),
    branch_nodes=8,
    context=40,
    repeats=1,
    reuse_tokens=8,
)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    model, tokenizer = load(str(save_tiny_model(tmp_path_factory.mktemp("tiny"))), dtype=torch.float64)
    return Subject(model, tokenizer, SMALL)


@pytest.fixture(scope="module")
def runs(subject: Subject) -> Runs:
    return run_all(subject, lambda line: None)


def test_line_tree_and_graph_are_computed_in_float64(subject: Subject) -> None:
    found = inputs.measure(subject)
    assert [entry.shape for entry in found.inputs] == ["line", "tree", "graph"]
    assert [entry.most_per_position for entry in found.inputs] == [1, 4, 2]
    assert inputs.finding(found).verdict == "confirmed"


def test_a_wrong_kernel_is_not_confirmed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    true = inputs.tree_attention
    monkeypatch.setattr(inputs, "tree_attention", lambda q, k, v, shape: true(q, k, v * 1.001, shape))
    assert inputs.finding(inputs.measure(subject)).verdict != "confirmed"


def test_chain_and_tree_are_scored_in_one_forward(subject: Subject) -> None:
    found = parallel.measure(subject)
    assert (found.chain_scored, found.tree_nodes, found.tree_branches) == (9, 1 + 3 + 6 + 6, 6)
    assert max(found.chain_difference, found.tree_difference) < 1e-9
    assert parallel.finding(found).verdict == "corrected"


def test_masks_are_those_that_attention_got(subject: Subject) -> None:
    found = masks.measure(subject)
    assert found.committed == len(subject.prompts[0]) - 1
    # three times a child of the root with two arms, put in path by path
    assert found.tree_parents == (-1, 0, 1, 2, 1, 4, 0, 6, 7, 6, 9, 0, 11, 12, 11, 14)
    for node, row in enumerate(found.tree):
        path = set()
        while node >= 0:
            path.add(node)
            node = found.tree_parents[node]
        assert {column for column, visible in enumerate(row) if visible} == path
    assert torch.equal(torch.tensor(found.chain), torch.ones(8, 8, dtype=torch.bool).tril())
    verdicts = [make(found).verdict for make in (masks.standard_finding, masks.tree_finding, masks.sibling_finding)]
    assert verdicts == ["corrected", "refuted", "confirmed"]
    assert found.exchanged == 0.0
    assert found.crossed > 1e-3 and found.crossed_exchanged > 1e-3


def test_a_witness_changes_nothing_and_leaves_nothing(subject: Subject) -> None:
    prompt = subject.prompts[0]
    tree = TokenTree((prompt[-1], 3, 4), (-1, 0, 0))
    with subject.lane(prompt) as lane:
        before = subject.logits(lane, tree)
        with watching(subject.target) as seen:
            during = subject.logits(lane, tree)
        with pytest.raises(RuntimeError, match="stop"), watching(subject.target):
            raise RuntimeError("stop")
        after = subject.logits(lane, tree)
    assert torch.equal(before, during) and torch.equal(before, after)
    assert seen.forwards == 1
    assert not subject.model._forward_pre_hooks


def test_forwards_and_steps_are_counted(subject: Subject, runs: Runs) -> None:
    found = steps.measure(subject, runs)
    assert [entry.forwards for entry in found.verified] == [1, 1, 1, 1]
    assert runs.plain.steps == runs.plain.tokens == 24
    for figures in runs.all:
        assert figures.tokens == 24
        assert figures.equal_prompts == 1  # float64: token for token
        assert figures.over_bound == figures.off_path == 0


def test_an_always_right_drafter_reaches_the_bound(subject: Subject, runs: Runs) -> None:
    found = bound.measure(subject, runs, lambda line: None)
    assert {depth: entry.most for depth, entry in found.right.items()} == {1: 2, 3: 4}
    assert found.wrong_tokens_per_step == 1.0
    assert found.by_width[2].keys() == {1, 3}


def test_rows_are_counted_in_the_cache(subject: Subject) -> None:
    found = rows.measure(subject)
    assert all(step.committed == step.expected and step.written >= step.kept for step in found.tree)
    assert (found.shared, found.apart) == (1 + 3 + 4 * 3, 4 * 7)
    # 2 layers, keys and values, 2 heads of width 8 in float64
    assert found.row_bytes == 2 * 2 * 2 * 8 * 8
    assert rows.finding(found).verdict == "confirmed"


def test_reuse_spares_the_first_layers(subject: Subject) -> None:
    found = reuse.measure(subject)
    assert found.agree and found.agreement.startswith("all")
    assert found.reuse.first_rows < found.recompute.first_rows
    assert found.ngrams.first_rows == found.ngrams.verified_nodes
    assert reuse.finding(found).verdict == "corrected"


def test_every_node_gets_logits(subject: Subject, runs: Runs) -> None:
    found = logits.measure(subject, runs)
    assert (found.rows, found.nodes, found.leaves) == (16, 16, 6)
    assert found.inner_difference < 1e-9


def test_costs_are_measured_for_every_shape(subject: Subject) -> None:
    found = cost.measure(subject)
    assert list(found.by_nodes) == [1, 4, 8]
    assert list(found.by_branches) == [1, 2, 4, 8]
    assert (found.trie_nodes, found.batch_nodes) == (1 + 4 + 8 * 4, 8 * 9)
    assert found.batch_bytes == 8 * found.trie_bytes > 0


def test_shares_add_up_and_torch_alone_computes_trees(subject: Subject, runs: Runs) -> None:
    found = shares.measure(subject, runs)
    assert sum(found.tree.share(part) for part in ("draft", "forward", "verify", "commit", "other")) == pytest.approx(1)
    assert (found.chain_forwards, found.tree_forwards, found.wants_features) == (1.0, 1.0, False)
    assert found.stock_difference < 1e-9


def test_the_model_is_left_as_found(tmp_path: Path) -> None:
    model, tokenizer = load(str(save_tiny_model(tmp_path)), dtype=torch.float32)
    weights: dict[str, Any] = copy.deepcopy(model.state_dict())
    config = copy.deepcopy(model.config.to_dict())
    attention = model.config._attn_implementation
    subject = Subject(model, tokenizer, SMALL)
    masks.measure(subject)
    reuse.measure(subject)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config and model.config._attn_implementation == attention
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not subject.target.cache.lanes
