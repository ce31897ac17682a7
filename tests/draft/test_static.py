"""Static shapes filled with ranked candidates."""

from __future__ import annotations

import pytest
from draft_steps import bigram_scorer, generate

from branchwise.draft import DraftContext, Evidence, MixedDrafter, StaticDrafter, make_drafter
from branchwise.draft.static import fill
from branchwise.tree import StaticShape
from branchwise.tune.sequoia import acceptance_by_rank, sequoia

pytestmark = pytest.mark.core

VOCAB = 30


class Ranked:
    """Says that the tokens ten times the path's length, plus 1, 2, 3, come next, in this order."""

    name = "ranked"
    feature_layers: tuple[int, ...] = ()
    trust = (0.9,)

    def __init__(self, weights=(0.5, 0.3, 0.2)):
        self._weights = weights

    def start(self, context):
        return None

    def begin(self, states, contexts, budgets):
        pass

    def evidence(self, state, path):
        tokens = range(10 * len(path) + 1, 10 * len(path) + 1 + len(self._weights))
        return [Evidence(0, dict(zip(tokens, self._weights, strict=True)))]

    def absorb(self, states, records):
        pass


def drafted(shape, budget=99, source=None, **context):
    context = DraftContext([29], VOCAB, **context)
    drafter = StaticDrafter(source or Ranked(), shape)
    return drafter.propose([drafter.start(context)], [context], [budget])[0]


def paths_of(draft):
    tree = draft.tree
    return [tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(1, len(tree))]


def test_every_node_takes_the_candidate_of_its_rank():
    # ranks (0,) (2,) (0, 1) (2, 0): tokens 1, 3, then 12 below 1 and 11 below 3
    draft = drafted(StaticShape([(0,), (2,), (0, 1), (2, 0)]))
    assert set(paths_of(draft)) == {(1,), (3,), (1, 12), (3, 11)}
    assert draft.sources == ("ranked",) * 4
    assert list(draft.scores) == sorted(draft.scores, reverse=True)
    assert dict(zip(paths_of(draft), draft.scores, strict=True))[(1, 12)] == pytest.approx(0.45 * 0.27)


def test_ranks_without_a_candidate_stay_empty_with_all_below():
    draft = drafted(StaticShape([(0,), (3,), (3, 0), (0, 0)]))
    assert set(paths_of(draft)) == {(1,), (1, 11)}


def test_a_smaller_budget_keeps_the_likeliest_nodes():
    shape = StaticShape.kary((3, 2))
    large = drafted(shape)
    assert len(large.tree) == 10
    for budget in range(1, 10):
        small = drafted(shape, budget)
        assert small.tree.tokens == large.tree.tokens[:budget]
        assert small.tree.parents == large.tree.parents[:budget]
    with pytest.raises(ValueError, match="budget"):
        drafted(shape, 0)


def test_depth_vocabulary_and_certain_candidates():
    assert set(paths_of(drafted(StaticShape.kary((2, 2)), max_depth=1))) == {(1,), (2,)}
    assert len(drafted(StaticShape.kary((2, 2)), max_depth=0).tree) == 1
    filled = fill(StaticShape.kary((2,)), lambda path, least: [(40, 0.9, "x"), (3, 0.5, "x")], VOCAB)
    assert filled == [((3,), 0.5, "x")]
    # all of one score: parents still come first
    certain = fill(StaticShape.kary((1, 1, 1)), lambda path, least: [(len(path), 1.0, "x")], VOCAB)
    assert [path for path, _, _ in certain] == [(0,), (0, 1), (0, 1, 2)]


def test_certain_candidates_all_have_one_score_and_parents_come_first():
    certain = Ranked(weights=(1.0,))
    certain.trust = (1.0,)
    draft = drafted(StaticShape.kary((1, 1, 1)), source=certain)
    assert paths_of(draft) == [(1,), (1, 11), (1, 11, 21)]
    assert draft.scores == (1.0, 1.0, 1.0)


def test_a_measured_vector_gives_a_better_shape():
    score = bigram_scorer(VOCAB)

    def uneven(prefix):
        """The first candidate of `Ranked` is right in 60% of the places, the second in 20%."""
        row = score(prefix).clamp(-9, 9)
        place = hash(tuple(prefix)) % 10
        row[(10 * (len(prefix) - 1) + (1 if place < 6 else 2 if place < 8 else 5)) % VOCAB] = 50.0
        return row

    class Along(Ranked):
        def begin(self, states, contexts, budgets):
            self._at = len(contexts[0].tokens) - 1

        def evidence(self, state, path):
            first = 10 * (self._at + len(path))
            return [Evidence(0, {(first + rank + 1) % VOCAB: weight for rank, weight in enumerate(self._weights)})]

    wide = StaticShape.kary((3, 1))
    measured = generate(StaticDrafter(Along(), wide), [[0]], 300, 99, VOCAB, uneven)[1][0]
    acceptance = acceptance_by_rank(measured)
    assert acceptance[0] == pytest.approx(0.6, abs=0.1) and acceptance[1] == pytest.approx(0.5, abs=0.15)
    best = sequoia(acceptance, len(wide))
    records = generate(StaticDrafter(Along(), best), [[0]], 300, 99, VOCAB, uneven)[1][0]
    before, after = (sum(len(record.tokens) for record in run) / 300 for run in (measured, records))
    assert after > before
    assert after == pytest.approx(best.expected_tokens(acceptance), rel=0.1)


def test_a_source_that_samples_is_refused():
    sampling = Ranked()
    sampling.samples = True
    with pytest.raises(ValueError, match="samples ranks no candidates"):
        StaticDrafter(sampling, StaticShape.kary((2,)))


def test_by_name_with_its_own_shape_or_another():
    assert len(make_drafter("static").shape) <= 33
    shape = StaticShape.kary((1, 1))
    drafter = make_drafter("static", shape=shape, source=MixedDrafter([Ranked()]))
    assert drafter.shape is shape
    assert drafter.name == "static"
