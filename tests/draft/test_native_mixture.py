"""Mixing in C against mixing in Python: the same trees, scores and lessons, to the last bit."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from draft_steps import bigram_scorer, check_draft, generate
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import (
    AdjacencyTable,
    DraftContext,
    DrafterSource,
    Evidence,
    MixedDrafter,
    NgramSource,
    OracleDrafter,
    RecyclingSource,
    SuffixSource,
    native_mixture,
    ngram,
    recycling,
    suffix,
)
from branchwise.draft.mixture import Mixture
from branchwise.draft.native_mixture import NativeMixture
from branchwise.draft.native_tables import NativeAdjacency, NativeNgrams, NativeSuffixes, mix_library
from branchwise.draft.ngram import ORDERS, RECENCY, NgramTrie
from branchwise.draft.suffix import OwnText
from branchwise.draft.suffix_automaton import MAX_CONTEXT
from branchwise.draft.suffix_store import SuffixStore
from small_model_rig import Always

# without a compiler there is nothing to compare: the mixture in Python serves
NEEDS_COMPILER = pytest.mark.skipif(mix_library() is None, reason="no C compiler here")
pytestmark = [pytest.mark.core, NEEDS_COMPILER]

VOCAB = 12


class Hunch:
    """Says something at some places, with more tokens than a table keeps, some outside the vocabulary."""

    name = "hunch"
    feature_layers: tuple[int, ...] = ()
    trust = (0.3, 0.6)

    def start(self, context):
        return context

    def begin(self, states, contexts, budgets):
        pass

    def evidence(self, state, path):
        last = (*state.tokens, *path)[-1]
        pieces = [Evidence(1, {last + 1: 3, last: 2}, 6)] if last % 3 == 0 else []
        return pieces + (
            [Evidence(0, {VOCAB + 2 - token: 1.0 / (1 + token) for token in range(VOCAB)}, 4.0)] if last % 2 else []
        )

    def absorb(self, states, records):
        pass


class Ties(Hunch):
    """Says that some tokens are equally likely."""

    name = "ties"

    def evidence(self, state, path):
        last = (*state.tokens, *path)[-1]
        return [Evidence(last % 2, dict.fromkeys(((last + step) % VOCAB for step in (5, 2, 3, 1)), 1.0), 4.0)]


class Many(Hunch):
    """Names more tokens than are told as they are, down to shares that nobody counts."""

    name = "many"

    def evidence(self, state, path):
        last = (*state.tokens, *path)[-1]
        return [Evidence(last % 2, {(last + step) % 40: 4.0**-step for step in range(1, 30)}, 0.4)]


def stored():
    """A store that continues some texts, so that a lane has evidence beside that of its own."""
    store = SuffixStore(500)
    for first in range(VOCAB):
        store.add([(first + step * step) % VOCAB for step in range(30)])
    return store


SOURCES = {
    "suffix": lambda: [SuffixSource()],
    "suffix and store": lambda: [SuffixSource(stored()), NgramSource()],
    "ngram": lambda: [NgramSource()],
    "recycling": lambda: [RecyclingSource()],
    "both": lambda: [NgramSource(), RecyclingSource()],
    "ties": lambda: [NgramSource(), Ties()],
    "many": lambda: [Many(), NgramSource()],
    "with others": lambda: [NgramSource(), SuffixSource(), RecyclingSource(), Hunch()],
    "with a costly one": lambda: [NgramSource(), RecyclingSource(), costly(OracleDrafter([[1, 2, 3, 4, 5, 6, 7] * 9]))],
}


def costly(drafter):
    drafter.costs_forwards = True
    return DrafterSource(drafter)


def in_python(monkeypatch):
    for module in (native_mixture, ngram, recycling, suffix):
        monkeypatch.setattr(module, "mix_library", lambda: None)


def run(make, prompts, steps, budget, width, seed):
    drafter = MixedDrafter(make(), width=width, ask=Always("yny"))
    score = bigram_scorer(VOCAB, seed)
    tokens, records = generate(drafter, prompts, steps, budget, VOCAB, score)
    return drafter, [[(r.draft.tree, r.draft.scores, r.draft.sources) for r in lane] for lane in records], tokens


@settings(max_examples=40, deadline=None)
@given(
    sources=st.sampled_from(sorted(SOURCES)),
    prompts=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), min_size=1, max_size=3),
    steps=st.integers(1, 15),
    budget=st.sampled_from([1, 2, 5, 17, 40]),
    width=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 50),
    most_pairs=st.sampled_from([3, 1000]),
)
def test_trees_and_lessons_are_those_of_python(sources, prompts, steps, budget, width, seed, most_pairs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recycling, "MAX_PAIRS", most_pairs)
        patch.setattr(AdjacencyTable.__init__, "__defaults__", (most_pairs,))
        native, drafts, tokens = run(SOURCES[sources], prompts, steps, budget, width, seed)
        in_python(patch)
        python, expected, expected_tokens = run(SOURCES[sources], prompts, steps, budget, width, seed)
    assert isinstance(native._mixture, NativeMixture)
    assert type(python._mixture) is Mixture
    assert drafts == expected
    assert tokens == expected_tokens
    assert native._mixture.trust.counts == python._mixture.trust.counts
    assert native._mixture.calibration.counts == python._mixture.calibration.counts


@settings(max_examples=60, deadline=None)
@given(
    history=st.lists(st.integers(0, 5), min_size=1, max_size=200),
    cut=st.integers(0, 200),
    path=st.lists(st.integers(0, 5), max_size=5).map(tuple),
)
def test_ngrams_in_c_are_the_trie(history, cut, path):
    trie, table = NgramTrie(), NativeNgrams(mix_library(), ORDERS, RECENCY)
    for part in (history[:cut], history[cut:]):
        trie.extend(part)
        table.extend(part)
    assert (table.tail, table.seen) == (trie.tail, trie.seen)
    found, expected = table.evidence(path), trie.evidence(path)
    assert found == expected
    assert [list(one.weights) for one in found] == [list(one.weights) for one in expected], "in the same order"


@settings(max_examples=80, deadline=None)
@given(
    words=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=40), min_size=1, max_size=5),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    path=st.lists(st.integers(0, 9), max_size=5).map(tuple),
)
def test_suffixes_in_c_are_the_automaton(words, order, path):
    python, native = OwnText(), NativeSuffixes(mix_library(), MAX_CONTEXT, suffix.MAX_CONTEXTS, suffix._OWN_KINDS)
    for number in order:
        word = words[number % len(words)]
        python.extend(word)
        native.extend(word)
        for below in (path, (), path[:2], (*word, *path), tuple(word)):
            found, expected = native.evidence(below), python.evidence(below)
            assert found == expected
            assert [list(one.weights) for one in found] == [list(one.weights) for one in expected], "in the same order"
    native.check_integrity()
    assert len(native) == len(python)


def test_common_contexts_and_long_repeats_are_counted_alike():
    python, native = OwnText(), NativeSuffixes(mix_library(), MAX_CONTEXT, suffix.MAX_CONTEXTS, suffix._OWN_KINDS)
    chance = random.Random(5)
    phrase = [chance.randrange(50) for _ in range(MAX_CONTEXT + 30)]
    for number in range(60):
        # the end of a phrase that is longer than what is counted, then a token that hundreds of others follow
        part = [
            *phrase[chance.randrange(20) :],
            chance.randrange(50),
            *(x for n in range(9) for x in (60, n % (1 + number % 9))),
        ]
        for token in part:
            for one in (python, native):
                one.extend([token])
            assert native.evidence(()) == python.evidence(())
        for path in ((60,), tuple(phrase), tuple(phrase[5:50])):
            assert native.evidence(path) == python.evidence(path)


def test_a_context_with_more_continuations_than_there_is_room_for_at_first():
    python, native = OwnText(), NativeSuffixes(mix_library(), MAX_CONTEXT, suffix.MAX_CONTEXTS, suffix._OWN_KINDS)
    text = [token for number in range(1, 700) for token in (0, number)]
    for one in (python, native):
        one.extend(text)
    assert native.evidence((0,)) == python.evidence((0,))
    assert len(native.evidence((0,))[0].weights) > 500
    deep = tuple(text[-900:])  # further than places are remembered
    assert native.evidence(deep) == python.evidence(deep) and native.evidence(deep[:-1]) == python.evidence(deep[:-1])


def test_a_suffix_with_more_continuations_than_are_kept():
    trie, table = NgramTrie(), NativeNgrams(mix_library(), ORDERS, RECENCY)
    history = [token for number in (*range(1, 20), 3, 5, 3, 25, 17) for token in (0, number)]
    for length in range(len(history)):
        trie.extend(history[length : length + 1])
        table.extend(history[length : length + 1])
        assert table.evidence((0,)) == trie.evidence((0,))
        assert [list(one.weights) for one in table.evidence((0,))] == [list(one.weights) for one in trie.evidence((0,))]


def test_many_contexts_are_found_again_and_the_oldest_pairs_are_not():
    rows, pairs = 5000, 700
    table, expected = NativeAdjacency(mix_library(), pairs, 4), AdjacencyTable(pairs)
    generator = torch.Generator().manual_seed(0)
    for first in range(0, rows, 20):
        tokens = torch.randint(0, 900, (20,), generator=generator).tolist()
        parents = [-1, *(int(torch.randint(0, node, (1,), generator=generator)) for node in range(1, 20))]
        likeliest = torch.randint(0, 900, (20, 8), generator=generator)
        likeliest = likeliest + torch.arange(8) * 1000  # distinct in a row
        shares = torch.randn(20, 8, generator=generator).sort(descending=True).values.softmax(-1)
        before = first if first % 40 else None
        for one in (table, expected):
            one.put_tree(tokens, parents, before, likeliest, shares)
            one.count(tokens)
    assert len(expected.after_pair) == pairs
    for token in range(900):
        assert table.evidence_after([token]) == expected.evidence_after([token])
    for pair in [*expected.after_pair, *((a, b) for a in range(60) for b in range(60))]:
        assert table.evidence_after(pair) == expected.evidence_after(pair)


def test_logits_that_are_no_numbers_are_refused():
    table = NativeAdjacency(mix_library(), 10, 4)
    with pytest.raises(ValueError, match="NaN"):
        table.put_tree([1], [-1], None, torch.zeros(1, 2, dtype=torch.int64), torch.full((1, 2), float("nan")))


@pytest.mark.parametrize("learning", [False, True])
def test_what_a_source_raises_comes_through(learning):
    class Fails(Hunch):
        fails = False

        def evidence(self, state, path):
            if self.fails:
                raise KeyError("no opinion")
            return super().evidence(state, path)

    source = Fails()
    drafter = MixedDrafter([NgramSource(), source])
    context = DraftContext([1, 2, 1], VOCAB)
    state = drafter.start(context)
    source.fails = not learning
    if not learning:
        with pytest.raises(KeyError, match="no opinion"):
            drafter.propose([state], [context], [9])
        source.fails = False
    draft = drafter.propose([state], [context], [9])[0]
    check_draft(draft, context, 9)
    source.fails = learning
    if learning:
        with pytest.raises(KeyError, match="no opinion"):
            drafter._mixture.learn(state, [2])


def test_tables_are_freed_with_their_owners(monkeypatch):
    freed = []
    library = mix_library()

    class Counting:
        def __getattr__(self, name):
            function = getattr(library, name)
            return (lambda handle: (freed.append(name), function(handle))) if name.endswith("_free") else function

    for module in (ngram, recycling, suffix):
        monkeypatch.setattr(module, "mix_library", Counting)
    drafter = MixedDrafter([NgramSource(), SuffixSource(), RecyclingSource()])
    context = DraftContext([1, 2, 1], VOCAB)
    state = drafter.start(context)
    drafter.propose([state], [context], [5])
    del state
    gc.collect()
    assert sorted(freed) == ["ngrams_free", "suffixes_free"]
    del drafter
    gc.collect()
    assert freed[2:] == ["adjacency_free"]


def test_where_nothing_can_be_compiled_python_does_it(monkeypatch):
    in_python(monkeypatch)
    drafter = MixedDrafter([NgramSource(), RecyclingSource()])
    assert type(drafter._mixture) is Mixture
    context = DraftContext([1, 2, 1], VOCAB)
    assert drafter.propose([drafter.start(context)], [context], [3])[0].tree.tokens == (1, 2, 1)
