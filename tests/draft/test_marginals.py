"""Trees of product distributions: against all paths written out, ties and flat positions included."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch
from draft_steps import check_draft
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import DraftContext
from branchwise.draft.index_tree import IndexTree
from branchwise.draft.marginals import FIRST_RANKS, Marginals, best_tree, marginals_of
from branchwise.tree import TokenTree

pytestmark = pytest.mark.core

ROOT = 1


def context_of(vocab_size: int, **options) -> DraftContext:
    return DraftContext([3, ROOT], vocab_size, **options)


def paths_of(tree: TokenTree) -> list[tuple[int, ...]]:
    """Tokens below the root of every drafted node, in node order."""
    return [tuple(tree.tokens[node] for node in tree.path(at)[1:]) for at in range(1, len(tree))]


def all_paths(logits: torch.Tensor, depth: int) -> dict[tuple[int, ...], float]:
    """Every path of 1 to ``depth`` tokens with its probability: no heap, no ranks."""
    law = logits.double().softmax(-1)
    return {
        path: math.prod(float(law[position, token]) for position, token in enumerate(path))
        for length in range(1, depth + 1)
        for path in itertools.product(range(logits.shape[1]), repeat=length)
    }


@settings(max_examples=150, deadline=None)
@given(
    # whole numbers, so that tokens and paths tie often
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=4),
    budget=st.integers(1, 40),
    max_depth=st.none() | st.integers(0, 5),
)
def test_the_tree_holds_exactly_the_best_paths(rows, budget, max_depth):
    logits = torch.tensor(rows, dtype=torch.float64)
    depth = len(rows) if max_depth is None else min(len(rows), max_depth)
    context = context_of(4, max_depth=max_depth)
    draft = best_tree(marginals_of(logits[None])[0], context, budget, "test")
    check_draft(draft, context, budget)
    expected = all_paths(logits, depth)
    drafted = paths_of(draft.tree)
    assert len(drafted) == min(budget - 1, len(expected))
    for path, score in zip(drafted, draft.scores, strict=True):
        assert score == pytest.approx(expected[path], rel=1e-12)
    # of paths that tie any may be chosen, so the scores are compared, not the paths
    best = sorted(expected.values(), reverse=True)[: budget - 1]
    assert list(draft.scores) == pytest.approx(best, rel=1e-12)
    assert list(draft.scores) == sorted(draft.scores, reverse=True)


class Counted(Marginals):
    """Remembers the highest rank asked for at each position."""

    def at(self, position: int, rank: int) -> tuple[int, float]:
        self.asked[position] = max(self.asked.get(position, 0), rank)
        return super().at(position, rank)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(2, 60), scale=st.sampled_from([0.0, 0.05, 1.0, 8.0]))
def test_few_ranks_are_asked_for_and_flat_positions_are_fetched_as_far_as_needed(seed, budget, scale):
    """Against the products of the ``budget`` likeliest tokens of all positions.

    With ``scale`` 0 all tokens tie, and a selection of more ranks may put others first than one of fewer did.
    """
    torch.manual_seed(seed)
    logits = (torch.randn(3, 300, dtype=torch.float64) * scale).round(decimals=1)
    (marginals,) = marginals_of(logits[None])
    marginals.__class__ = Counted
    marginals.asked = {}
    draft = best_tree(marginals, context_of(300), budget, "test")
    check_draft(draft, context_of(300), budget)
    assert len(draft.tree) == budget
    assert all(rank < budget - (position + 1) for position, rank in marginals.asked.items())
    law = logits.softmax(-1)
    first, second, third = law.sort(-1, descending=True).values[:, :budget]
    pairs = torch.outer(first, second).flatten()
    best = torch.cat((first, pairs, torch.outer(pairs, third).flatten())).sort(descending=True).values[: budget - 1]
    assert list(draft.scores) == pytest.approx(best.tolist(), rel=1e-12)
    for path, score in zip(paths_of(draft.tree), draft.scores, strict=True):
        assert score == pytest.approx(math.prod(float(law[i, token]) for i, token in enumerate(path)), rel=1e-12)


def test_a_tree_by_hand():
    #             root
    #           /      \
    #       4 .7        2 .2        order: (4) .70, (4 0) .42, (4 3) .21, (2) .20, (2 0) .12
    #      /    \         |
    #   0 .42  3 .21   0 .12
    law = torch.tensor([[0.04, 0.03, 0.20, 0.03, 0.70], [0.60, 0.04, 0.03, 0.30, 0.03]], dtype=torch.float64)
    draft = best_tree(marginals_of(law.log()[None])[0], context_of(5), 6, "test")
    assert draft.tree == TokenTree([ROOT, 4, 0, 3, 2, 0], [-1, 0, 1, 1, 0, 4])
    assert list(draft.scores) == pytest.approx([0.70, 0.42, 0.21, 0.20, 0.12])
    assert draft.sources == ("test",) * 5


def test_certain_tokens_tie_with_their_children_and_come_first():
    logits = torch.full((6, 8), -1e9)
    logits[:, 2] = 0.0  # probability 1 exactly at every position: a parent ties with its children
    draft = best_tree(marginals_of(logits[None])[0], context_of(8), 20, "test")
    assert draft.tree == TokenTree.from_chain(ROOT, [2] * 6)  # and nothing of probability 0
    assert draft.scores == (1.0,) * 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coarse_logits_over_a_large_vocabulary_never_repeat_a_sibling(dtype):
    torch.manual_seed(0)
    logits = torch.randn(2, 5000).to(dtype)  # bfloat16 has a few hundred values here: ties at every boundary
    draft = best_tree(marginals_of(logits[None])[0], context_of(5000), 4 * FIRST_RANKS, "test")
    check_draft(draft, context_of(5000), 4 * FIRST_RANKS)
    ranked = logits[0].float().softmax(-1).sort(descending=True).values
    first = sorted((s for s, p in zip(draft.scores, draft.tree.parents[1:], strict=True) if p == 0), reverse=True)
    assert len(first) > FIRST_RANKS
    assert first == pytest.approx(ranked[: len(first)].tolist(), rel=1e-5)


def test_lanes_are_ranked_together_as_if_alone():
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 50)
    together = marginals_of(logits)
    for lane, marginals in enumerate(together):
        (alone,) = marginals_of(logits[lane : lane + 1])
        drafts = [best_tree(each, context_of(50), 30, "test") for each in (marginals, alone)]
        assert drafts[0].tree == drafts[1].tree
        assert drafts[0].scores == drafts[1].scores


def test_a_smaller_vocabulary_is_drafted_in_the_targets_ids():
    law = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float64)
    (marginals,) = marginals_of(law.log()[None], token_ids=[5, 9, 30])
    draft = best_tree(marginals, context_of(37), 4, "test")
    assert draft.tree.tokens == (ROOT, 30, 9, 5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_an_error_that_says_where(value):
    logits = torch.zeros(2, 3, 5)
    logits[1, 2, 4] = value
    with pytest.raises(ValueError, match=r"not finite \(position 2 of lane 1\)"):
        marginals_of(logits)


def test_ranks_and_positions_that_do_not_exist_are_refused():
    (marginals,) = marginals_of(torch.zeros(1, 2, 3))
    for position, rank in ((2, 0), (0, 3), (0, -1)):
        with pytest.raises(IndexError, match="2 positions of 3 tokens"):
            marginals.at(position, rank)


# static trees

#            root          choices (0) (1) (0 0) (0 2) (1 0) (0 0 1)
#          /      \
#        0          1      ranks; depth 3 under the leftmost
#      /   \        |
#     0     2       0
#     |
#     1
CHOICES = [(0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 1)]


def random_marginals(depth: int, vocab_size: int = 9) -> tuple[Marginals, torch.Tensor]:
    torch.manual_seed(3)
    logits = torch.randn(1, depth, vocab_size, dtype=torch.float64)
    return marginals_of(logits)[0], logits[0].softmax(-1)


@pytest.mark.parametrize("budget", range(1, 9))
@pytest.mark.parametrize("max_depth", [None, 0, 1, 2])
def test_a_static_tree_is_filled_by_rank_and_keeps_its_best_nodes(budget, max_depth):
    marginals, law = random_marginals(4)
    context = context_of(9, max_depth=max_depth)
    draft = IndexTree(CHOICES).filled(marginals, context, budget, "test")
    check_draft(draft, context, budget)
    expected = {}
    for choice in CHOICES:
        if max_depth is not None and len(choice) > max_depth:
            continue
        tokens = [int(law[i].argsort(descending=True)[rank]) for i, rank in enumerate(choice)]
        expected[tuple(tokens)] = math.prod(float(law[i, token]) for i, token in enumerate(tokens))
    best = dict(sorted(expected.items(), key=lambda item: -item[1])[: budget - 1])
    assert paths_of(draft.tree) == list(best)
    assert list(draft.scores) == pytest.approx(list(best.values()), rel=1e-12)


def test_static_trees_refuse_what_the_heads_cannot_fill():
    tree = IndexTree(CHOICES)
    tree.check(3, 9)
    with pytest.raises(ValueError, match=r"deepest choice has 3 indices but there are 2 heads.*longer than 2"):
        tree.check(2, 9)
    with pytest.raises(ValueError, match="index 2 but there are only 2 tokens"):
        tree.check(3, 2)
    with pytest.raises(ValueError, match="at least one path"):
        IndexTree([])
    with pytest.raises(ValueError, match=r"\(0, 1\) has no parent"):
        IndexTree([(0, 1)])


@pytest.mark.parametrize("build", ["best", "static"])
def test_a_budget_below_one_is_refused(build):
    marginals, _ = random_marginals(3)
    with pytest.raises(ValueError, match="budget of at least 1"):
        if build == "best":
            best_tree(marginals, context_of(9), 0, "test")
        else:
            IndexTree(CHOICES).filled(marginals, context_of(9), 0, "test")


def test_a_tree_of_32_drafted_nodes_takes_well_under_a_millisecond():
    """The best of many runs: a busy machine makes some slow, never fast."""
    torch.manual_seed(0)
    (marginals,) = marginals_of(torch.randn(1, 15, 5000) * 3)
    context = context_of(5000)
    best = math.inf
    for _ in range(50):
        began = time.perf_counter()
        best_tree(marginals, context, 33, "test")
        best = min(best, time.perf_counter() - began)
    assert best < 1e-3
