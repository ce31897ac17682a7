"""One budget for many lanes: nodes go where they are likely to be accepted, and only as long as they pay."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from branchwise.tree import StaticShape, TokenTree
from branchwise.tune.budget import FixedBudget, make_budget
from branchwise.tune.cost_curve import CostCurve
from branchwise.tune.cost_table import Column, CostTable
from branchwise.tune.sequoia import sequoia
from branchwise.tune.shared import CEILINGS, FIRST_DRAFTED, FIRST_VISITS, KEPT_AFTER, SharedBudget
from branchwise.verify.proposal import DraftTree, Sampled
from branchwise.verify.rule import Verdict

pytestmark = pytest.mark.core


def table(cost, context: int = 64) -> CostTable:
    nodes = (*range(1, 33), *range(40, 600, 40))
    return CostTable((Column(context, nodes, tuple(float(cost(count)) for count in nodes)),))


def flat(nodes: float) -> float:
    return 1.0


def arithmetic(nodes: float) -> float:
    return nodes / 10


def knee(nodes: float) -> float:
    """A forward is bound by its weights up to 32 nodes."""
    return max(1.0, nodes / 32)


FLAT = table(flat)


def chain(scores: list[float], told: bool = True) -> DraftTree:
    tree = TokenTree.from_chain(0, range(1, len(scores) + 1))
    return DraftTree.deterministic(tree, "test", scores if told else ())


def took(forward: float, draft: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(total=forward + draft, draft=draft)


def step(budget: SharedBudget, drafts: dict[int, DraftTree], paths: dict[int, list[int]]):
    """One step; the cut trees."""
    lanes = list(drafts)
    budget.ceilings(lanes)
    cut = budget.divide(lanes, list(drafts.values()))
    budget.learn_shares(lanes, cut, [Verdict(tuple(paths[lane]), 99) for lane in lanes], took(1.0))
    return cut


def simulate(cost, lanes: dict[int, float], steps: int, nodes: int = 12, seed: int = 0, known: bool = True):
    """Lanes whose chains are right with a given probability per node; returns the sizes of the last quarter."""
    budget, chance = SharedBudget(table=table(cost) if known else None), random.Random(seed)
    sizes = []
    for _ in range(steps):
        numbers = list(lanes)
        ceilings = budget.ceilings(numbers)
        drafts = [
            chain([lanes[lane] ** (i + 1) for i in range(min(nodes, ceiling - 1))])
            for lane, ceiling in zip(numbers, ceilings, strict=True)
        ]
        cut = budget.divide(numbers, drafts)
        verdicts = []
        for lane, draft, kept in zip(numbers, drafts, cut, strict=True):
            depth = 0
            while depth < len(draft.tree) - 1 and chance.random() < lanes[lane]:
                depth += 1
            bonus = len(kept.tree) if depth >= len(kept.tree) else 99
            verdicts.append(Verdict(tuple(range(min(depth + 1, len(kept.tree)))), bonus))
        total = sum(len(draft.tree) for draft in cut)
        budget.learn_shares(numbers, cut, verdicts, took(cost(total), 0.005 if max(ceilings) > 1 else 0.001))
        sizes.append([len(draft.tree) for draft in cut])
    return sizes[-steps // 4 :]


def mean(rows: list[list[int]], lane: int) -> float:
    return sum(row[lane] for row in rows) / len(rows)


@pytest.mark.parametrize("known", [True, False])
def test_free_nodes_are_all_taken(known):
    sizes = simulate(flat, {1: 0.8}, 120, known=known)
    assert max(size for row in sizes for size in row) == 13
    assert mean(sizes, 0) > 10


@pytest.mark.parametrize("known", [True, False])
def test_where_every_node_costs_its_arithmetic_only_likely_ones_are_taken(known):
    sizes = simulate(arithmetic, {1: 0.3, 2: 0.3}, 160, known=known)
    assert mean(sizes, 0) < 1.2 and mean(sizes, 1) < 1.2


def test_a_lane_that_drafts_well_gets_more():
    sizes = simulate(knee, dict(enumerate((0.9, 0.5, 0.1, 0.5))), 200)
    assert mean(sizes, 0) > 1.5 * mean(sizes, 1) > 3 * mean(sizes, 2) >= 3


def test_trees_shrink_to_lone_roots_as_the_load_grows():
    averages = [
        sum(map(sum, rows)) / (len(rows) * lanes)
        for lanes in (1, 4, 16, 64)
        for rows in [simulate(knee, dict.fromkeys(range(lanes), 0.5), 80)]
    ]
    assert averages == sorted(averages, reverse=True)
    assert averages[0] > 4 and averages[-1] < 1.05


def test_a_drafter_that_overrates_itself_is_corrected_by_its_record():
    budget = SharedBudget(table=FLAT)
    for _ in range(60):
        step(budget, {1: chain([0.9, 0.8]), 2: chain([0.9, 0.8])}, {1: [0], 2: [0, 1, 2]})
    assert budget._record.lane_factor(1) < 0.5 and budget._record.lane_factor(2) > 1.2
    budget.forget(1)
    assert budget._record.lane_factor(1) == 1, "nothing is known of a lane that has left"


def test_nodes_go_by_the_record_and_not_by_what_a_drafter_says_of_itself():
    budget = SharedBudget(step_nodes=6, table=FLAT)
    for _ in range(60):
        step(budget, {1: chain([0.9, 0.8]), 2: chain([0.9, 0.8])}, {1: [0], 2: [0, 1, 2]})
    boasting, modest = budget.divide([1, 2], [chain([0.95, 0.9, 0.85]), chain([0.7, 0.6, 0.5])])
    assert (len(boasting.tree), len(modest.tree)) == (2, 4)


def test_what_was_cut_away_and_would_have_been_right_counts_as_right():
    """Or a lane whose record is bad could never show that it has become better."""
    dear = SharedBudget(table=table(lambda nodes: nodes**2))
    for _ in range(20):
        lanes, draft = [1], chain([0.5, 0.4])
        dear.ceilings(lanes)
        (cut,) = dear.divide(lanes, [draft])
        assert len(cut.tree) == 1, "two nodes cost four times as much"
        dear.learn_shares(lanes, [cut], [Verdict((0,), 1)], took(1.0))
    assert dear._record.gains(1, chain([0.5, 0.4]))[0] > 0.8


def test_a_step_never_has_more_nodes_than_allowed():
    budget = SharedBudget(step_nodes=20, table=FLAT)
    budget.ceilings([1, 2, 3, 4])
    drafts = budget.divide([1, 2, 3, 4], [chain([0.9] * 10)] * 4)
    assert sum(len(draft.tree) for draft in drafts) == 20
    assert all(len(draft.tree) >= 1 for draft in SharedBudget(step_nodes=2).divide([1, 2, 3], [chain([0.9])] * 3))
    assert sum(SharedBudget(step_nodes=20, table=FLAT).ceilings([1, 2, 3])) <= 20


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
    first, second = SharedBudget(step_nodes=6, table=FLAT).divide([1, 2], [one, two])
    assert (first.tree, first.scores) == (TokenTree((5, 6, 8), (-1, 0, 1)), (0.9, 0.8))
    assert (second.tree, second.scores, second.sources) == (TokenTree((5, 6, 8), (-1, 0, 0)), (0.4, 0.6), ("two",) * 2)


def test_a_child_said_to_be_likelier_than_its_parent_is_not_taken_without_it():
    odd = DraftTree.deterministic(TokenTree((5, 6, 7), (-1, 0, 1)), "odd", (0.3, 0.9))
    assert SharedBudget(step_nodes=2, table=FLAT).divide([1], [odd])[0].tree == TokenTree((5, 6), (-1, 0))


def test_unscored_trees_are_cut_from_below():
    budget = SharedBudget(step_nodes=4, table=FLAT)
    assert budget.divide([1], [chain([0.0] * 6, told=False)])[0].tree == TokenTree.from_chain(0, (1, 2, 3))


@pytest.mark.parametrize("nodes", [1, 2, 4, 7, 12])
def test_where_chances_depend_on_the_rank_alone_the_cut_is_sequoias_tree(nodes):
    """Depth and width come from the same order: a full tree whose scores are products of the ranks' chances."""
    acceptance = (0.55, 0.4, 0.2)
    full = StaticShape.kary((3, 3, 3, 3))
    chances = (0.55, 0.45 * 0.4, 0.45 * 0.6 * 0.2)
    scores = [1.0]
    for parent, rank in zip(full.parents[1:], full.ranks[1:], strict=True):
        scores.append(scores[parent] * chances[rank])
    draft = DraftTree.deterministic(TokenTree(range(len(full)), full.parents), "full", scores[1:])
    (cut,) = SharedBudget(largest=200, step_nodes=nodes, table=FLAT).divide([1], [draft])
    taken = StaticShape([full.paths[token - 1] for token in cut.tree.tokens[1:]])
    best = sequoia(acceptance, nodes, max_depth=4)
    assert taken.expected_tokens(acceptance) == pytest.approx(best.expected_tokens(acceptance))
    assert (taken.height, len(taken)) == (best.height, len(best))


def sampled_chain(nodes: int) -> DraftTree:
    return DraftTree(
        TokenTree.from_chain(0, range(1, nodes)), tuple(Sampled(torch.ones(5) / 5) for _ in range(1, nodes))
    )


def test_sampled_trees_are_never_cut_and_get_their_share_beforehand():
    budget = SharedBudget(table=table(arithmetic))
    asked = []
    for _ in range(60):
        (ceiling,) = budget.ceilings([1])
        draft = sampled_chain(min(ceiling, 4)) if ceiling > 1 else chain([])
        assert budget.divide([1], [draft]) == [draft]
        budget.learn_shares([1], [draft], [Verdict((0,), 99)], took(arithmetic(len(draft.tree)), 0.001))
        asked.append(ceiling)
    assert asked[1] > 1
    assert asked[16:].count(1) >= 40, "nothing was accepted and every node costs"


# what is chosen when


def test_without_a_table_every_size_is_tried_first_with_one_drafts_are():
    asked = []
    for known in (None, FLAT):
        budget = SharedBudget(table=known)
        sizes = []
        for _ in range(12):
            sizes += budget.ceilings([1])
            draft = chain([0.5] * (sizes[-1] - 1))
            (cut,) = budget.divide([1], [draft])
            budget.learn_shares([1], [cut], [Verdict((0,), 99)], took(1.0, 0.001))
        asked.append(sizes)
    assert asked[0] == [size for size in CEILINGS for _ in range(FIRST_VISITS)]
    assert asked[1][: 1 + FIRST_DRAFTED] == [1, *[33] * FIRST_DRAFTED]


def test_one_hiccup_of_the_machine_changes_nothing():
    sizes = []
    for hiccup in (1.0, 50.0):
        budget, chance = SharedBudget(table=table(knee)), random.Random(1)
        sizes.append([])
        for at in range(80):
            (ceiling,) = budget.ceilings([1])
            (cut,) = budget.divide([1], [chain([0.7 ** (i + 1) for i in range(ceiling - 1)])])
            path = tuple(range(min(chance.choice((1, 2, 3, 5)), len(cut.tree))))
            budget.learn_shares([1], [cut], [Verdict(path, 99)], took(hiccup if at == 60 else 1.0, 0.001))
            sizes[-1].append(len(cut.tree))
    assert sizes[0] == sizes[1]


def test_what_was_learned_is_kept_once_and_not_where_it_was_measured():
    kept = []
    budget = SharedBudget(keep=kept.append)
    for context, steps in ((300.0, 3 * KEPT_AFTER), (2000.0, 2 * KEPT_AFTER)):
        for _ in range(steps):
            (ceiling,) = budget.ceilings([1], context)
            (cut,) = budget.divide([1], [chain([0.9 ** (i + 1) for i in range(ceiling - 1)])])
            nodes = len(cut.tree)
            budget.learn_shares(
                [1], [cut], [Verdict(tuple(range(nodes)), 99)], took(knee(nodes) * context / 300, 0.001)
            )
    assert [column.context for column in kept] == [256, 2048]
    assert kept[0].nodes[0] == 1 and kept[0].seconds[0] == pytest.approx(1.0, rel=0.01)
    assert kept[1].at([1])[0] == pytest.approx(2000 / 300, rel=0.05)
    again = SharedBudget(table=CostTable(tuple(kept)), keep=kept.append)
    for _ in range(2 * KEPT_AFTER):
        again.ceilings([1], 500.0)
        again.learn_shares([1], again.divide([1], [chain([0.9] * 8)]), [Verdict((0,), 99)], took(1.0))
    assert len(kept) == 2


@pytest.mark.parametrize("name", ["largest", "step_nodes"])
def test_numbers_below_one(name):
    with pytest.raises(ValueError, match=f"{name} counts nodes.* got 0"):
        SharedBudget(**{name: 0})


def test_plain_decoding_alone_is_a_choice():
    for known in (None, FLAT):
        budget = SharedBudget(largest=1, table=known)
        for _ in range(40):
            assert budget.ceilings([1, 2]) == [1, 1]
            roots = budget.divide([1, 2], [chain([]), chain([])])
            budget.learn_shares([1, 2], roots, [Verdict((0,), 99)] * 2, took(0.1))


def test_auto_is_the_shared_budget_and_a_policy_is_taken_as_it_is():
    policy = make_budget("auto")
    assert isinstance(policy, SharedBudget)
    assert make_budget(policy) is policy
    fixed = make_budget("9")
    assert isinstance(fixed, FixedBudget) and fixed.choose(2) == [9, 9] and make_budget(fixed) is fixed
    with pytest.raises(ValueError, match="whole number of nodes or 'auto', got 'many'"):
        make_budget("many")


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
