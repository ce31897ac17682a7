"""When a model's draft is worth its forwards, by a clock of the test's own; and what a mixed drafter does about it."""

from __future__ import annotations

import pytest
import torch
from draft_steps import bigram_scorer, generate

from branchwise.draft import DraftContext, DrafterSource, MixedDrafter, NgramSource, NoneDrafter, OracleDrafter
from branchwise.draft.asking import FREE_LOOKS, LOOK_EVERY, LOOK_SHARE, NEIGHBOUR, PRIOR, AskRule, _size
from branchwise.draft.mixed import _nodes_left
from branchwise.draft.protocol import StepRecord
from branchwise.target.protocol import TargetOutput
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict
from small_model_rig import Always

pytestmark = pytest.mark.core

VOCAB = 30


class Clock:
    """Stands still until it is moved."""

    now = 0.0

    def __call__(self):
        return self.now


def step(rule, clock, *, promised, free, full, costly=1.0, forward=1.0):
    """One lane's step; returns whether the model was asked."""
    asked = rule.wants([promised])
    if asked:
        rule.asked(costly)
    rule.drafted()
    clock.now += forward
    rule.verified()
    rule.learn(promised, free, full if asked else None)
    return asked


def test_a_text_that_was_not_read_must_be_worth_reading() -> None:
    clock = Clock()
    rule = AskRule(clock)
    figures = {"promised": 0.3, "free": 0, "full": 1, "costly": 0.9}
    assert all(step(rule, clock, **figures) for _ in range(40)), "2 tokens in 1.9 seconds for 1 in 1"
    rule.asked(0.9 + 50.0, unread=1000)
    assert rule.wants([0.3], unread=100), "5 seconds of reading are 0.08 of each of 64 steps, and 0.1 is won"
    assert not rule.wants([0.3], unread=300), "15 seconds are 0.23 of each"
    assert rule.wants([0.3]), "who has read it asks as before"


def asked_of(steps, **figures):
    clock = Clock()
    rule = AskRule(clock)
    return [step(rule, clock, **figures) for _ in range(steps)]


def test_the_rule_is_tokens_per_second():
    # with the model 4 tokens in 2 seconds, without 1 in 1: worth it
    assert all(asked_of(40, promised=0.3, free=0, full=3))
    # with the model 3 tokens in 2 seconds, without 2 in 1: not worth it
    asked = asked_of(40, promised=1.2, free=1, full=2)
    looks = [number for number, was in enumerate(asked) if was]
    assert looks[:FREE_LOOKS] == [LOOK_EVERY * look for look in range(FREE_LOOKS)]
    assert len(looks) <= FREE_LOOKS + 1 + LOOK_SHARE * 40 / 0.5, "each loses half a second"
    # the same tokens, but the model is almost free
    assert all(asked_of(40, promised=1.2, free=1, full=2, costly=0.1))


def test_what_a_draft_adds_is_compared_within_a_step():
    rule = AskRule(Clock())
    step(rule, rule.clock, promised=1.2, free=0, full=2, costly=0.1)
    for _ in range(3):
        rule.learn(1.2, free=0, full=2)
    for _ in range(10):
        rule.learn(1.2, free=6, full=None)
    assert rule.wants([1.2]), "two tokens more for a tenth of a forward, however long the runs of other steps"


def test_it_looks_again_after_a_while_and_changes_its_mind():
    clock = Clock()
    rule = AskRule(clock)
    early = [step(rule, clock, promised=1.2, free=1, full=1) for _ in range(100)]
    looks = [number for number, asked in enumerate(early) if asked][FREE_LOOKS:]
    assert 1 <= len(looks) <= 3
    later = [step(rule, clock, promised=1.2, free=0, full=9) for _ in range(90)]
    first = later.index(True)
    assert first < 50 and all(later[first:]), "one look is enough when the free drafts have become worthless"


def test_costly_drafts_that_never_pay_cost_a_small_share_of_the_time():
    clock = Clock()
    rule = AskRule(clock)
    steps, costly = 2000, 3.0
    promises = [(5 * number * number + 3 * number) % 97 / 7 for number in range(steps)]  # of all sizes
    asked = [step(rule, clock, promised=promise, free=1, full=1, costly=costly) for promise in promises]
    assert sum(asked) * costly <= FREE_LOOKS * costly + 2 * costly + LOOK_SHARE * steps
    assert sum(asked[-500:]) >= 1, "it still looks"


def test_one_kind_of_promise_where_they_pay_is_found_among_others_where_they_do_not():
    clock = Clock()
    rule = AskRule(clock)
    asked = {0.1: [], 5.0: []}
    for number in range(300):
        promise = 0.1 if number % 5 == 4 else 5.0  # what comes first, and most often, does not pay
        full = 6 if promise == 0.1 else 4
        asked[promise].append(step(rule, clock, promised=promise, free=0 if promise == 0.1 else 4, full=full))
    assert all(asked[0.1][20:]) and sum(asked[5.0][20:]) <= 12


def test_promises_of_different_size_are_told_apart():
    clock = Clock()
    rule = AskRule(clock)
    rich_asked = []
    for _ in range(40):
        poor = step(rule, clock, promised=0.1, free=0, full=4)
        rich = step(rule, clock, promised=7.0, free=6, full=7)
        rich_asked.append(rich)
    assert poor and sum(rich_asked) <= 6, "a look now and then"
    # all lanes together: what the poor lane gains pays for the other's forward, too
    both = [_size(0.1), _size(7.0)]
    poor_weight, rich_weight = (rule._promises[size].gain_weight for size in both)
    far = NEIGHBOUR ** (both[1] - both[0])  # what the other size weighs beside an own
    poor_alike = (4 * poor_weight + far * 1 * rich_weight) / (poor_weight + far * rich_weight)
    rich_alike = (1 * rich_weight + far * 4 * poor_weight) / (rich_weight + far * poor_weight)
    poor_gain = (4 * poor_weight + PRIOR * poor_alike) / (poor_weight + PRIOR)
    rich_gain = (1 * rich_weight + PRIOR * rich_alike) / (rich_weight + PRIOR)
    assert (poor_gain, rich_gain) == pytest.approx((4 - 0, 7 - 6), abs=1e-3), "so far apart they hardly matter"
    assert rule._loss(both) == pytest.approx(1 - (poor_gain + rich_gain) / (0 + 6 + 2))


def test_a_few_unlucky_looks_do_not_outweigh_what_promises_of_about_that_size_bring():
    rule = AskRule(Clock())
    for promised, free, full in ((0.1, 0, 1), (0.3, 0, 0), (0.7, 0, 1)):
        for _ in range(4):
            step(rule, rule.clock, promised=promised, free=free, full=full, costly=0.1)
            rule.learn(promised, free, full)  # of another lane
    assert step(rule, rule.clock, promised=0.3, free=0, full=0, costly=0.1)
    for _ in range(40):
        rule.learn(0.3, free=0, full=0)
    assert not rule.wants([0.3]), "but many do"


class Costly(OracleDrafter):
    """An oracle that notes when it is asked, and reads features."""

    costs_forwards = True
    feature_layers = (3,)

    def __init__(self, future, **options):
        super().__init__(future, **options)
        self.budgets, self.features, self.finished = [], [], 0

    def propose(self, states, contexts, budgets):
        self.budgets.append(list(budgets))
        self.features.append(contexts[0].features[3].flatten().tolist())
        return super().propose(states, contexts, budgets)

    def finish(self, state):
        self.finished += 1


def test_a_skipped_drafter_finds_all_features_at_its_next_step():
    costly = Costly(lambda tokens: [1, 2])
    drafter = MixedDrafter([NgramSource(), DrafterSource(costly)], ask=Always("ynny"))
    context = DraftContext([5, 6], VOCAB, features={3: torch.tensor([[5.0]])})
    state = drafter.start(context)
    for number in range(4):
        (draft,) = drafter.propose([state], [context], [6])
        record = StepRecord(draft, Verdict((0,), 9), (9,), TargetOutput(torch.zeros(len(draft.tree), VOCAB)))
        drafter.observe([state], [record])
        context.tokens.append(9)
        context.features = {3: torch.tensor([[float(number)]])}
    assert costly.features == [[5.0], [0.0, 1.0, 2.0]]
    drafter.finish(state)
    assert costly.finished == 1


def test_a_budget_of_one_asks_nobody_and_teaches_nothing():
    costly = Costly(lambda tokens: [1, 2])
    rule = AskRule(Clock())
    drafter = MixedDrafter([NgramSource(), DrafterSource(costly)], ask=rule)
    context = DraftContext([5, 6], VOCAB, features={3: torch.zeros(1, 1)})
    state = drafter.start(context)
    (draft,) = drafter.propose([state], [context], [1])
    assert len(draft.tree) == 1 and costly.budgets == []
    drafter.observe([state], [StepRecord(draft, Verdict((0,), 9), (9,))])
    assert all(promise.free_weight == 0.0 for promise in rule._promises)


def test_the_rule_is_told_what_nobody_has_read_yet():
    told = []

    class Told(Always):
        def wants(self, promised, unread=0):
            told.append(unread)
            return super().wants(promised)

        def asked(self, seconds, unread=0):
            told.append(-unread)

    drafter = MixedDrafter([NgramSource(), DrafterSource(Costly(lambda tokens: [1, 2]))], ask=Told("nyn"))
    context = DraftContext([5, 6, 7], VOCAB, features={3: torch.zeros(2, 1)})
    state = drafter.start(context)
    for _ in range(3):
        drafter.propose([state], [context], [9])
    assert told == [3, 3, -3, 0]


def test_the_costly_source_is_told_how_many_nodes_are_left():
    free = DraftTree.deterministic(TokenTree([1, 2, 3, 4], [-1, 0, 1, 0]), "s", [0.9, 0.6, 0.1])
    assert _nodes_left(17, free) == 15
    assert _nodes_left(3, free) == 2, "at least one node, since it was asked"
    assert _nodes_left(1, free) == 1


def test_a_skipped_drafter_says_nothing_in_that_step():
    oracle = Costly(lambda tokens: [10, 11])
    oracle.feature_layers = ()
    oracle.propose = lambda *lane: OracleDrafter.propose(oracle, *lane)
    drafter = MixedDrafter([NgramSource(), DrafterSource(oracle)], ask=Always("yn"))
    context = DraftContext([1, 2], VOCAB)
    state = drafter.start(context)
    trees = [drafter.propose([state], [context], [5])[0].tree.tokens for _ in range(2)]
    assert trees == [(2, 10, 11), (2,)]


def test_whatever_the_pattern_the_text_is_the_targets_own():
    score = bigram_scorer(VOCAB)
    plain, _ = generate(NoneDrafter(), [[1, 2], [3]], 80, 1, VOCAB, score)
    for pattern in ("y", "n", "yyn", "nnnny"):
        oracle = DrafterSource(OracleDrafter(plain, branches=1))
        oracle.costs_forwards = True
        tokens, _ = generate(
            MixedDrafter([NgramSource(), oracle], ask=Always(pattern)), [[1, 2], [3]], 30, 9, VOCAB, score
        )
        for mine, theirs in zip(tokens, plain, strict=True):
            shared = min(len(mine), len(theirs))
            assert mine[:shared] == theirs[:shared]


def test_chains_by_width_one():
    context = DraftContext([1, 2, 3, 1, 2, 4, 1, 2], VOCAB)
    drafter = MixedDrafter([NgramSource()], width=1)
    (draft,) = drafter.propose([drafter.start(context)], [context], [6])
    assert len(draft.tree) > 2 and draft.tree.parents == tuple(range(-1, len(draft.tree) - 1))
