"""Mixing: one budget, one node per token and place, and the better source preferred."""

from __future__ import annotations

import pytest
import torch
from draft_steps import bigram_scorer, generate
from hypothesis import given
from hypothesis import strategies as st

from branchwise.draft import DraftContext, DrafterSource, Evidence, MixedDrafter, NoneDrafter, OracleDrafter
from branchwise.draft.calibration import Calibration
from branchwise.draft.interpolation import TrustWeights
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree, Sampled

pytestmark = pytest.mark.core

VOCAB = 30


class TableSource:
    """Proposes what a function says after the lane's whole prefix."""

    feature_layers: tuple[int, ...] = ()
    trust = (0.5,)

    def __init__(self, name, guess):
        self.name = name
        self._guess = guess

    def start(self, context):
        return context

    def begin(self, states, contexts, budgets):
        pass

    def evidence(self, state, path):
        weights = dict(self._guess([*state.tokens, *path]))
        return [Evidence(0, weights)] if weights else []

    def absorb(self, states, records):
        pass


def draft_of(sources, context, budget):
    drafter = MixedDrafter(sources)
    return drafter.propose([drafter.start(context)], [context], [budget])[0]


def test_the_same_token_at_the_same_place_is_one_node_and_likelier():
    one = TableSource("a", lambda prefix: [(3, 0.5), (4, 0.4)])
    other = TableSource("b", lambda prefix: [(3, 0.6)])
    context = DraftContext([1], VOCAB, max_depth=1)
    draft = draft_of([one, other], context, 10)
    assert draft.tree.tokens == (1, 3, 4)
    assert draft.sources == ("a", "a")
    alone = max(draft_of([one], context, 10).scores[0], draft_of([other], context, 10).scores[0])
    assert draft.scores[0] > alone


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
    right = TableSource("right", lambda prefix: [(int(score(prefix).argmax()), 0.9)])
    wrong = TableSource("wrong", lambda prefix: [((int(score(prefix).argmax()) + 1) % VOCAB, 1.0)])
    drafter = MixedDrafter([wrong, right])
    _, records = generate(drafter, [[1, 2]], 60, 4, VOCAB, score)
    assert records[0][0].draft.sources[0] == "wrong"
    assert set(records[0][-1].draft.sources) == {"right"}
    assert records[0][-1].draft.scores[0] > 0.8


def test_the_most_trusted_evidence_speaks_first_and_gets_the_credit():
    weak = TableSource("weak", lambda prefix: [(3, 0.6), (4, 0.4)])
    weak.trust = (0.1,)
    strong = TableSource("strong", lambda prefix: [(3, 1.0)])
    strong.trust = (0.9,)
    draft = draft_of([weak, strong], DraftContext([1], VOCAB, max_depth=1), 20)
    # strong decides in 0.9 of the cases, weak in 0.1 of the rest
    assert draft.tree.tokens == (1, 3, 4)
    assert draft.sources == ("strong", "weak")
    assert draft.scores == pytest.approx((0.9 + 0.1 * 0.1 * 0.6, 0.1 * 0.1 * 0.4))


def test_learns_what_each_kind_of_evidence_is_worth():
    # both kinds claim the same; after even tokens the claim is right, after odd ones it is wrong
    score = bigram_scorer(VOCAB)

    class TwoKinds(TableSource):
        trust = (0.5, 0.5)

        def evidence(self, state, path):
            prefix = [*state.tokens, *path]
            odd = prefix[-1] % 2
            return [Evidence(odd, {(int(score(prefix).argmax()) + odd) % VOCAB: 1.0})]

    drafter = MixedDrafter([TwoKinds("two", None)])
    _tokens, records = generate(drafter, [[1, 2]], 150, 2, VOCAB, score)
    last = {record.draft.tree.tokens[0] % 2: record.draft.scores for record in records[0][50:]}
    assert last[0][0] > 0.8
    assert not last[1] or last[1][0] < 0.2


def test_another_drafter_takes_part_as_a_source():
    # the oracle knows five tokens; the toy goes on below them
    oracle = DrafterSource(OracleDrafter([[1, 10, 11, 12, 13, 14]]))
    toy = TableSource("toy", lambda prefix: [(20, 0.9)] if prefix[-1] == 14 else [])
    draft = draft_of([oracle, toy], DraftContext([1], VOCAB), 7)
    assert draft.tree.tokens == (1, 10, 11, 12, 13, 14, 20)
    assert draft.sources == ("oracle",) * 5 + ("toy",)


def test_a_drafter_that_samples_is_refused():
    class Sampler(NoneDrafter):
        name = "sampler"

        def propose(self, states, contexts, budgets):
            return [DraftTree(TokenTree((1, 2), (-1, 0)), (Sampled(torch.ones(VOCAB) / VOCAB),))]

    with pytest.raises(ValueError, match="'sampler' samples"):
        draft_of([DrafterSource(Sampler())], DraftContext([1], VOCAB), 5)


def test_refuses_no_sources_and_twin_names():
    with pytest.raises(ValueError, match="at least one"):
        MixedDrafter([])
    with pytest.raises(ValueError, match="distinct names"):
        MixedDrafter([TableSource("a", dict), TableSource("a", dict)])


@given(
    trust=st.lists(st.sampled_from([0.1, 0.5, 0.5, 0.9, 1.0]), min_size=4, max_size=4),
    said=st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=2, max_size=2),
)
def test_the_more_trusted_comes_first_and_among_equals_what_was_said_first(trust, said):
    sources = [TableSource(name, dict) for name in "ab"]
    for index, (source, kinds) in enumerate(zip(sources, said, strict=True)):
        source.trust = tuple(trust[2 * index : 2 * index + 2])
        source.evidence = lambda state, path, kinds=kinds: [Evidence(kind, {7: 1.0}) for kind in kinds]
    drafter = MixedDrafter(sources)
    state = drafter.start(DraftContext([1], VOCAB))
    state.asked = True
    spoken = [("ab"[index], 2 * index + kind) for index in (0, 1) for kind in said[index]]
    found = [(name, kind) for _, kind, _, name in drafter._mixture._evidence(state, ())]
    assert found == sorted(spoken, key=lambda one: -trust[one[1]])


@given(st.floats(0.0, 1.0), st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=50))
def test_a_calibrated_claim_is_a_probability(claim, history):
    calibration = Calibration()
    for past, hit in history:
        calibration.learn(past, hit)
    ((token, estimate, source),) = calibration.correct({7: claim}, {7: "toy"})
    assert (token, source) == (7, "toy")
    assert 0.0 <= estimate <= 1.0


def test_calibration_converges_to_the_rate_of_hits_and_forgets():
    calibration = Calibration()
    for step in range(3000):
        calibration.learn(0.8, step % 5 == 0)
    assert calibration.correct({0: 0.8}, {0: "toy"})[0][1] == pytest.approx(0.2, abs=0.03)
    for _ in range(3000):
        calibration.learn(0.8, True)
    assert calibration.correct({0: 0.8}, {0: "toy"})[0][1] > 0.95


def test_trust_weights_find_the_true_mixture():
    # the token follows level 0 in 30% of the cases and level 1 otherwise; the two never agree
    trust = TrustWeights([0.5, 0.5], memory=100_000)
    for step in range(4000):
        from_first = step % 10 < 3
        trust.learn([(0, float(from_first)), (1, float(not from_first))])
    assert trust.weights[0] == pytest.approx(0.3, abs=0.02)
    assert trust.weights[1] > 0.95
