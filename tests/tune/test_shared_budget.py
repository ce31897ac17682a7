"""One budget for many lanes: nodes go where they are likely to be accepted, and only as long as they pay."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from branchwise.tree import TokenTree
from branchwise.tune.cost_curve import CostCurve
from branchwise.tune.shared import PLAIN_FIRST, REST, SharedBudget
from branchwise.verify.proposal import DraftTree

pytestmark = pytest.mark.core


def chain(scores: list[float], told: bool = True) -> DraftTree:
    tree = TokenTree.from_chain(0, range(1, len(scores) + 1))
    return DraftTree.deterministic(tree, "test", scores if told else ())


def flat(nodes: float) -> float:
    return 1.0


def arithmetic(nodes: float) -> float:
    return nodes / 10


def knee(nodes: float) -> float:
    """A forward is bound by its weights up to 32 nodes."""
    return max(1.0, nodes / 32)


def simulate(cost, lanes: dict[int, float], steps: int, nodes: int = 12, seed: int = 0, **options):
    """Lanes whose chains are right with a given probability per node; returns the sizes of the last quarter."""
    budget, chance = SharedBudget(**options), random.Random(seed)
    sizes = []
    for _ in range(steps):
        numbers = list(lanes)
        ceilings = budget.ceilings(numbers)
        drafts = [
            chain([lanes[lane] ** (i + 1) for i in range(min(nodes, ceiling - 1))])
            for lane, ceiling in zip(numbers, ceilings, strict=True)
        ]
        cut = budget.divide(numbers, drafts)
        paths = []
        for lane, draft in zip(numbers, cut, strict=True):
            depth = 0
            while depth < len(draft.tree) - 1 and chance.random() < lanes[lane]:
                depth += 1
            paths.append(tuple(range(depth + 1)))
        total = sum(len(draft.tree) for draft in cut)
        budget.learn_shares(numbers, cut, paths, SimpleNamespace(total=cost(total) + 0.5, draft=0.5))
        sizes.append([len(draft.tree) for draft in cut])
    return sizes[-steps // 4 :]


def mean(rows: list[list[int]], lane: int) -> float:
    return sum(row[lane] for row in rows) / len(rows)


def test_free_nodes_are_all_taken():
    sizes = simulate(flat, {1: 0.8}, 60)
    assert max(size for row in sizes for size in row) == 13
    assert mean(sizes, 0) > 10


def test_where_every_node_costs_its_arithmetic_only_likely_ones_are_taken():
    sizes = simulate(arithmetic, {1: 0.3, 2: 0.3}, 120)
    assert mean(sizes, 0) < 1.2 and mean(sizes, 1) < 1.2


def test_a_lane_that_drafts_well_gets_more():
    sizes = simulate(knee, dict(enumerate((0.9, 0.5, 0.1, 0.5))), 200)
    assert mean(sizes, 0) > 2 * mean(sizes, 1) > 2 * mean(sizes, 2) >= 2


def test_trees_shrink_to_lone_roots_as_the_load_grows():
    averages = [
        sum(map(sum, rows)) / (len(rows) * lanes)
        for lanes in (1, 4, 16, 64)
        for rows in [simulate(knee, dict.fromkeys(range(lanes), 0.5), 160)]
    ]
    assert averages == sorted(averages, reverse=True)
    assert averages[0] > 4 and averages[-1] < 1.05


def test_a_drafter_that_overrates_itself_is_corrected_by_its_record():
    budget = SharedBudget()
    for _ in range(30):
        budget.learn_shares([1, 2], [chain([0.9, 0.8])] * 2, [(0,), (0, 1, 2)], SimpleNamespace(total=1, draft=0))
    assert budget._rate(1) < 0.2 and budget._rate(2) > 1
    budget.forget(1)
    assert budget._rate(1) == 1, "nothing is known of a lane that has left"


def test_nodes_go_by_the_record_and_not_by_what_a_drafter_says_of_itself():
    budget = SharedBudget(step_nodes=5)
    for _ in range(30):
        budget.learn_shares([1, 2], [chain([0.9, 0.8])] * 2, [(0,), (0, 1, 2)], SimpleNamespace(total=1, draft=0))
    boasting, modest = budget.divide([1, 2], [chain([0.95, 0.9, 0.85]), chain([0.7, 0.6, 0.5])])
    assert (len(boasting.tree), len(modest.tree)) == (1, 4)


def test_a_step_never_has_more_nodes_than_allowed():
    budget = SharedBudget(step_nodes=20)
    budget.curve.learn(4, 1.0)
    drafts = budget.divide([1, 2, 3, 4], [chain([0.9] * 10)] * 4)
    assert sum(len(draft.tree) for draft in drafts) == 20
    assert all(len(draft.tree) >= 1 for draft in SharedBudget(step_nodes=2).divide([1, 2, 3], [chain([0.9])] * 3))


def test_the_best_nodes_are_taken_with_their_ancestors():
    r"""The budget of four drafted nodes goes to the best of both trees.

        0              0
       / \            / \
    .9 1  2 .2     .4 1  3 .6
       |              |
    .8 3           .4 2
    """
    one = DraftTree.deterministic(TokenTree((5, 6, 7, 8), (-1, 0, 0, 1)), "one", (0.9, 0.2, 0.8))
    two = DraftTree.deterministic(TokenTree((5, 6, 7, 8), (-1, 0, 1, 0)), "two", (0.4, 0.4, 0.6))
    budget = SharedBudget(step_nodes=6)
    budget.curve.learn(2, 1.0)
    first, second = budget.divide([1, 2], [one, two])
    assert (first.tree, first.scores) == (TokenTree((5, 6, 8), (-1, 0, 1)), (0.9, 0.8))
    assert (second.tree, second.scores, second.sources) == (TokenTree((5, 6, 8), (-1, 0, 0)), (0.4, 0.6), ("two",) * 2)


def test_a_child_said_to_be_likelier_than_its_parent_is_not_taken_without_it():
    odd = DraftTree.deterministic(TokenTree((5, 6, 7), (-1, 0, 1)), "odd", (0.3, 0.9))
    budget = SharedBudget(step_nodes=2)
    budget.curve.learn(1, 1.0)
    assert budget.divide([1], [odd])[0].tree == TokenTree((5, 6), (-1, 0))


def test_unscored_trees_are_cut_from_below():
    budget = SharedBudget(step_nodes=4)
    budget.curve.learn(1, 1.0)
    assert budget.divide([1], [chain([0.0] * 6, told=False)])[0].tree == TokenTree.from_chain(0, (1, 2, 3))


def test_sampled_trees_are_never_cut_and_get_their_share_beforehand():
    import torch

    from branchwise.verify.proposal import Sampled

    tree = TokenTree.from_chain(0, (1, 2, 3))
    sampled = DraftTree(tree, tuple(Sampled(torch.ones(5) / 5) for _ in range(3)))
    budget = SharedBudget()
    for _ in range(PLAIN_FIRST):
        assert budget.ceilings([1]) == [1]
        budget.learn_shares([1], [chain([])], [(0,)], SimpleNamespace(total=1.0, draft=0.0))
    assert budget.divide([1], [sampled]) == [sampled]
    for _ in range(40):
        budget.learn_shares([1], [sampled], [(0,)], SimpleNamespace(total=4.0, draft=0.0))
    assert budget.ceilings([1]) == [1], "nothing was accepted and it cost four times as much"


def test_drafting_rests_after_a_step_in_which_nothing_paid():
    budget = SharedBudget()
    for nodes, seconds in ((1, 1.0), (1, 1.0), (2, 9.0)):
        budget.curve.learn(nodes, seconds)
    budget._step = 1
    assert len(budget.divide([1], [chain([0.2])])[0].tree) == 1
    assert [budget.ceilings([1]) for _ in range(REST)] == [[1]] * REST
    assert budget._rest == 0


@pytest.mark.parametrize("name", ["largest", "step_nodes"])
def test_numbers_below_one(name):
    with pytest.raises(ValueError, match=f"{name} counts nodes.* got 0"):
        SharedBudget(**{name: 0})


# the curve


def test_the_curve_is_straight_between_what_was_seen_and_goes_on_beyond():
    curve = CostCurve()
    assert curve.seconds(7) == 1.0
    curve.learn(4, 2.0)
    assert curve.seconds(1) == curve.seconds(100) == 2.0, "nothing is known of a slope: more nodes are tried"
    curve.learn(16, 5.0)
    assert [curve.seconds(n) for n in (1, 4, 8, 16, 20)] == [2.0, 2.0, 3.0, 5.0, 6.0]


def test_a_hiccup_does_not_move_it_and_costs_never_fall():
    curve = CostCurve()
    for seconds in (1.0, 1.1, 60.0, 1.0):
        curve.learn(8, seconds)
    curve.learn(64, 0.5)
    assert curve.seconds(8) == 1.0 and curve.seconds(64) == 1.0


def test_what_nobody_visits_is_forgotten():
    curve = CostCurve()
    curve.learn(64, 50.0)
    for _ in range(600):
        curve.learn(4, 1.0)
    assert curve.seconds(64) == 1.0
