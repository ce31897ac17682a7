"""Plans of draws, by hand; and that what is drawn fills them in order."""

from __future__ import annotations

import pytest
import torch

from branchwise.draft.sample_growth import SampledGrowth, draft_law
from branchwise.draft.sample_plan import PRIOR, DrawRecord, plan_draws
from branchwise.tree import TokenTree
from branchwise.verify import SeededCoins
from branchwise.verify.proposal import ONE_HOT, DraftTree

pytestmark = pytest.mark.core

ROOT = DraftTree.deterministic(TokenTree.from_chain(9))
#     0: 9
#    /    \
#   1: 5   2: 6      given the parent 0.7 and 0.2
#   |
#   3: 7             given the parent 0.5
FIXED = DraftTree.deterministic(TokenTree([9, 5, 6, 7], [-1, 0, 0, 1]), ["f"] * 3, [0.7, 0.2, 0.35])


def table(slots):
    return [(slot.parent, slot.token, pytest.approx(slot.value)) for slot in slots[1:]]


def test_without_a_fixed_tree_the_shape_is_best_first_over_ranks():
    slots = plan_draws(ROOT, [0.6, 0.2], 7, None, rounds=3)
    # values: a .6, aa .36, aaa .216, b .2, then ab = ba = .12
    assert table(slots)[:4] == [(0, None, 0.6), (1, None, 0.36), (2, None, 0.216), (0, None, 0.2)]
    assert [slot.draws for slot in slots[:3]] == [2, 2, 1]
    assert max(slot.round for slot in slots) == 3
    assert max(slot.depth for slot in plan_draws(ROOT, [0.6, 0.2], 7, None, rounds=1)) == 1


def test_draws_stand_behind_the_fixed_children_that_are_worth_more():
    slots = plan_draws(FIXED, [0.6, 0.3], 9, None, rounds=1)
    # token 6 (0.2) is worth more than the first draw that could take its place (0.3 * 0.6 = 0.18); then 0.1 is left.
    # below 5 the fixed 7 (0.5) is worth less than a first draw (0.6), so it goes
    root = [(slot.token, pytest.approx(slot.value)) for slot in slots[1:] if slot.parent == 0]
    assert root == [(5, 0.7), (6, 0.2), (None, 0.06), (None, 0.03)]
    below = [(slot.token, pytest.approx(slot.value)) for slot in slots if slot.parent == 1]
    assert below == [(None, 0.42), (None, 0.21)]
    assert {slot.source for slot in slots if slot.token in (5, 6)} == {"f"}


def test_limits_on_depth_and_reach():
    assert max(s.depth for s in plan_draws(FIXED, [0.6], 20, 1, rounds=9)) == 1
    deep = plan_draws(FIXED, [0.3], 20, None, rounds=9, reach=1)
    assert {(s.depth, s.token) for s in deep[1:]} == {(1, 5), (1, 6), (1, None), (2, 7)}
    assert len(plan_draws(FIXED, [0.6], 1, None, rounds=9)) == 1
    assert len(plan_draws(FIXED, [0.6], 9, 0, rounds=9)) == 1


def test_a_sure_child_leaves_nothing_to_draw():
    sure = DraftTree.deterministic(TokenTree([9, 5], [-1, 0]), ["f"], [1.0])
    assert [slot.token for slot in plan_draws(sure, [0.6], 3, 1, rounds=9)] == [9, 5]


def test_the_record_learns_and_never_rises():
    record = DrawRecord()
    assert record.shares(3) == pytest.approx(PRIOR[:3])
    assert len(record.shares(99)) == len(PRIOR)
    for _ in range(200):
        record.learn(2, 1)
    shares = record.shares(2)
    assert shares[0] < 0.1 and shares[1] <= shares[0]
    for _ in range(3000):
        record.learn(2, 0)
    assert record.shares(2)[0] > 0.95


@pytest.mark.parametrize("seed", range(10))
def test_every_planned_draw_is_made_and_its_vector_lacks_the_fixed_siblings(seed):
    slots = plan_draws(FIXED, [0.1, 0.1], 20, 2, rounds=2)
    growing = SampledGrowth(slots, SeededCoins(seed).drafting())
    assert {path for _, path in growing.frontier} == {(), (5,), (6,)}, "fixed nodes are run in the first round"
    law = [0.0] * 10
    law[5], law[1], law[2] = 0.5, 0.3, 0.2
    growing.take([torch.tensor(law, dtype=torch.float64) for _ in growing.frontier])
    draft = growing.tree(9, "model")
    top = draft.tree.children(0)
    assert [draft.tree.tokens[node] for node in top[:2]] == [5, 6]
    assert draft.proposal(top[0]) is ONE_HOT and draft.sources[top[0] - 1] == "f"
    vector = draft.proposal(top[2]).vector
    assert draft.proposal(top[3]).vector is vector
    assert vector.tolist() == pytest.approx([0, 0.6, 0.4, 0, 0, 0, 0, 0, 0, 0])
    assert {draft.tree.tokens[node] for node in top[2:]} == {1, 2}, "without replacement"


def test_a_small_support_leaves_slots_empty_with_all_below():
    slots = plan_draws(ROOT, [0.5, 0.4], 12, None, rounds=2)
    growing = SampledGrowth(slots, SeededCoins(0).drafting())
    one = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    growing.take([one])
    assert [path for _, path in growing.frontier] == [(1,)]
    growing.take([None])
    assert growing.tree(2, "model").tree.tokens == (2, 1)


def test_without_coins_the_likeliest_tokens_are_taken():
    growing = SampledGrowth(plan_draws(ROOT, [0.5, 0.4], 3, 1, rounds=2), None)
    growing.take([torch.tensor([0.2, 0.5, 0.3])])
    draft = growing.tree(2, "model")
    assert draft.tree.tokens == (2, 1, 2) and draft.is_deterministic


def test_the_draft_law_covers_the_targets_vocabulary():
    logits = torch.tensor([0.0, 1.0, 2.0, 9.0])
    assert draft_law(logits, 3, None, None).tolist() == pytest.approx(torch.softmax(logits[:3], 0).tolist())
    longer = draft_law(logits, 6, None, None)
    assert longer[4:].tolist() == [0.0, 0.0] and float(longer.sum()) == pytest.approx(1.0)
    legal = torch.tensor([True, False, True])
    assert draft_law(logits, 3, None, legal)[1] == 0.0
    assert draft_law(logits, 3, None, torch.zeros(3, dtype=torch.bool)) is None
    assert draft_law(torch.tensor([0.0, float("nan")]), 2, None, None) is None
