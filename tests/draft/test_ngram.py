"""The n-gram trie against a rescan of the whole history."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import DraftContext, NgramSource, make_drafter
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
    found = {ORDERS[evidence.kind // KINDS]: evidence.weights for evidence in trie.evidence(path)}
    for order in ORDERS:
        expected = rescan(history, order, path) if order <= len(history) + len(path) else {}
        if not expected:
            assert order not in found
            continue
        assert found[order] == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(history=small_texts, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_incremental_equals_rebuilt(history, cuts):
    whole = NgramTrie()
    whole.extend(history)
    grown = NgramTrie()
    edges = sorted({0, len(history), *(cut for cut in cuts if cut < len(history))})
    for start, end in pairwise(edges):
        grown.extend(history[start:end])
    assert grown == whole


def first_claims(tokens, path=()):
    """Estimates of a fresh n-gram drafter for the children of ``path``."""
    drafter = make_drafter("ngram")
    context = DraftContext(tokens, vocab_size=10, max_depth=len(path) + 1)
    draft = drafter.propose([drafter.start(context)], [context], [64])[0]
    nodes = [node for node in range(1, len(draft.tree)) if draft.tree.depth[node] == len(path) + 1]
    paths = {node: tuple(draft.tree.tokens[i] for i in draft.tree.path(node)[1:]) for node in nodes}
    return {paths[node][-1]: draft.scores[node - 1] for node in nodes if paths[node][:-1] == path}


def test_the_longer_match_and_the_more_recent_continuation_come_first():
    # "7 1 2" was followed by 3 once; "1 2" alone by 4, three times
    claims = first_claims([7, 1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2, 4, 7, 1, 2])
    assert claims[3] > claims[4] > 0.0
    # with nothing longer than "1" to go by, the last of two continuations wins
    claims = first_claims([1, 5, 1, 6, 1])
    assert claims[6] > claims[5] > 0.0


def test_matches_continue_below_drafted_tokens():
    assert first_claims([1, 2, 3, 4, 1, 2], path=(3,)).keys() == {4}


def test_kinds_tell_once_from_always_from_sometimes():
    source = NgramSource()
    last = len(ORDERS) - 1  # order 1
    for tokens, kind in (([1, 2, 1], 0), ([1, 2, 1, 2, 1], 1), ([1, 2, 1, 3, 1], 2)):
        evidence = source.evidence(source.start(DraftContext(tokens, vocab_size=10)), ())
        assert evidence[-1].kind == last * KINDS + kind
        assert evidence[-1].total == pytest.approx(sum(evidence[-1].weights.values()))
        assert all(one.kind < len(source.trust) for one in evidence)


def test_a_suffix_keeps_a_bounded_number_of_continuations_the_recent_ones():
    trie = NgramTrie()
    trie.extend([token for other in range(100, 150) for token in (1, other)] + [1])
    shortest = trie.evidence(())[-1]
    assert list(shortest.weights) == [149 - age for age in range(MAX_CONTINUATIONS)]
