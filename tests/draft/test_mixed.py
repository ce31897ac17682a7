"""Mixing: one budget, one node per token and place, and the better source preferred."""

from __future__ import annotations

import pytest
from draft_steps import bigram_scorer, generate
from hypothesis import given
from hypothesis import strategies as st

from branchwise.draft import DraftContext, MixedDrafter
from branchwise.draft.calibration import Calibration
from branchwise.draft.interpolation import TrustWeights

pytestmark = pytest.mark.core

VOCAB = 30


class TableSource:
    """Proposes what a function says after the lane's whole prefix."""

    feature_layers: tuple[int, ...] = ()

    def __init__(self, name, guess):
        self.name = name
        self._guess = guess
        self.learned = []

    def start(self, context):
        return context

    def begin(self, states, contexts, budgets):
        pass

    def expand(self, state, path):
        return self._guess([*state.tokens, *path])

    def learn(self, state, path, token):
        self.learned.append((path, token))

    def absorb(self, states, records):
        pass


def test_the_same_token_at_the_same_place_is_one_node_and_likelier():
    same = TableSource("a", lambda prefix: [(3, 0.5), (4, 0.4)])
    twin = TableSource("b", lambda prefix: [(3, 0.6)])
    drafter = MixedDrafter([same, twin])
    context = DraftContext([1], VOCAB, max_depth=1)
    draft = drafter.propose([drafter.start(context)], [context], [10])[0]
    assert draft.tree.tokens == (1, 3, 4)
    assert draft.scores[0] >= 0.6
    assert draft.sources == ("b", "a")


def test_each_source_continues_below_the_nodes_of_the_other():
    odd = TableSource("odd", lambda prefix: [(prefix[-1] + 1, 0.9)] if prefix[-1] % 2 else [])
    even = TableSource("even", lambda prefix: [(prefix[-1] + 1, 0.9)] if prefix[-1] % 2 == 0 else [])
    drafter = MixedDrafter([odd, even])
    context = DraftContext([1], VOCAB)
    draft = drafter.propose([drafter.start(context)], [context], [5])[0]
    assert draft.tree.tokens == (1, 2, 3, 4, 5)
    assert draft.sources == ("odd", "even", "odd", "even")


def test_learns_to_prefer_the_source_that_is_right():
    score = bigram_scorer(VOCAB)

    def right(prefix):
        return [(int(score(prefix).argmax()), 0.3)]

    def boastful(prefix):
        return [((int(score(prefix).argmax()) + 1) % VOCAB, 0.9)]

    drafter = MixedDrafter([TableSource("boastful", boastful), TableSource("right", right)])
    _, records = generate(drafter, [[1, 2]], 60, 4, VOCAB, score)
    assert set(records[0][0].draft.sources) == {"boastful"}
    assert set(records[0][-1].draft.sources) == {"right"}
    assert records[0][-1].draft.scores[0] > 0.6


def test_sources_learn_along_the_accepted_path_and_from_the_bonus_token():
    score = bigram_scorer(VOCAB)
    source = TableSource("right", lambda prefix: [(int(score(prefix).argmax()), 0.9)])
    _, records = generate(MixedDrafter([source]), [[1, 2]], 1, 4, VOCAB, score)
    tokens = records[0][0].tokens
    assert len(tokens) == 4
    assert source.learned == [(tokens[:depth], tokens[depth]) for depth in range(4)]


def test_refuses_no_sources_and_twin_names():
    with pytest.raises(ValueError, match="at least one"):
        MixedDrafter([])
    with pytest.raises(ValueError, match="distinct names"):
        MixedDrafter([TableSource("a", list), TableSource("a", list)])


@given(st.floats(0.0, 1.0), st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=50))
def test_a_calibrated_claim_is_a_probability(claim, history):
    calibration = Calibration()
    for past, hit in history:
        calibration.learn(past, hit)
    assert 0.0 <= calibration.correct(claim) <= 1.0


def test_calibration_converges_to_the_rate_of_hits_and_forgets():
    calibration = Calibration()
    for step in range(3000):
        calibration.learn(0.8, step % 5 == 0)
    assert calibration.correct(0.8) == pytest.approx(0.2, abs=0.03)
    for _ in range(3000):
        calibration.learn(0.8, True)
    assert calibration.correct(0.8) > 0.95


def test_trust_weights_find_the_true_mixture():
    # the token follows level 0 in 30% of the cases and level 1 otherwise; the two never agree
    trust = TrustWeights([0.5, 0.5], memory=100_000)
    for step in range(4000):
        from_first = step % 10 < 3
        trust.learn([(0, float(from_first)), (1, float(not from_first))])
    assert trust.weights[0] == pytest.approx(0.3, abs=0.02)
    assert trust.weights[1] > 0.95
