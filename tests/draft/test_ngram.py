"""The n-gram trie against a rescan of the whole history."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import DraftContext, NgramSource
from branchwise.draft.ngram import KINDS, MAX_CONTINUATIONS, ORDERS, RECENCY, NgramTrie

pytestmark = pytest.mark.core

small_texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def rescan(history: list[int], order: int, path: tuple[int, ...]) -> dict[int, float]:
    """What followed the last ``order`` tokens of history + path, with recency weights, looking at everything."""
    window = [*history, *path][-order:]
    weights: dict[int, float] = {}
    for end in range(order, len(history)):
        if history[end - order : end] == window:
            weights = {token: weight * RECENCY for token, weight in weights.items()}
            weights[history[end]] = weights.get(history[end], 0.0) + 1.0
    return weights


@settings(max_examples=60, deadline=None)
@given(history=small_texts, path=st.lists(st.integers(0, 3), max_size=5).map(tuple))
def test_finds_exactly_what_a_rescan_finds(history, path):
    assert MAX_CONTINUATIONS >= 4  # nothing is dropped over four letters
    trie = NgramTrie()
    trie.extend(history)
    found = {ORDERS[kind // KINDS]: (kind % KINDS, known) for kind, known in trie.levels(path)}
    for order in ORDERS:
        expected = rescan(history, order, path) if order <= len(history) + len(path) else {}
        if not expected:
            assert order not in found
            continue
        kind, known = found[order]
        if isinstance(known, int):
            known = {known: 1.0}
            assert kind == 0
        else:
            assert kind == (2 if len(expected) > 1 else 1)
        assert known == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(history=small_texts, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_incremental_equals_rebuilt(history, cuts):
    whole = NgramTrie()
    whole.extend(history)
    grown = NgramTrie()
    edges = sorted({0, len(history), *(cut for cut in cuts if cut < len(history))})
    for start, end in zip(edges, edges[1:], strict=False):
        grown.extend(history[start:end])
    assert grown == whole


def test_the_longer_match_and_the_more_recent_continuation_come_first():
    source = NgramSource()
    # "7 1 2" was followed by 3 once; "1 2" alone by 4, three times
    context = DraftContext([7, 1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2, 4, 7, 1, 2], vocab_size=10)
    state = source.start(context)
    claims = dict(source.expand(state, ()))
    assert claims[3] > claims[4] > 0.0
    # with nothing longer than "1" to go by, the last of two continuations wins
    context = DraftContext([1, 5, 1, 6, 1], vocab_size=10)
    claims = dict(source.expand(source.start(context), ()))
    assert claims[6] > claims[5] > 0.0


def test_estimates_never_sum_to_more_than_one():
    source = NgramSource()
    context = DraftContext([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2] * 5, vocab_size=10)
    state = source.start(context)
    for path in ((), (3,), (3, 1), (9,)):
        assert sum(claim for _, claim in source.expand(state, path)) <= 1.0 + 1e-9


def test_trust_follows_what_turns_out_right():
    source = NgramSource()
    context = DraftContext([1, 2, 3, 1, 2], vocab_size=10)
    state = source.start(context)
    before = dict(source.expand(state, ()))[3]
    for _ in range(50):
        source.learn(state, (), 9)
    worse = dict(source.expand(state, ()))[3]
    for _ in range(200):
        source.learn(state, (), 3)
    better = dict(source.expand(state, ()))[3]
    assert worse < before < better
