"""The store of earlier texts against a search through all of them, its bound, and who is thrown out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import SuffixStore
from branchwise.draft.block_text import BLOCK
from branchwise.draft.context_index import ContextIndex, context_key, context_keys
from branchwise.draft.suffix_store import MAX_CANDIDATES, MAX_MATCH, ORDERS, Match

pytestmark = pytest.mark.core


def passage(seed: int, length: int, letters: int = 3) -> list[int]:
    coins = random.Random(seed)
    return [coins.randrange(letters) for _ in range(length)]


def searched(store: SuffixStore, window: list[int]) -> list[tuple[list[int], int]]:
    """What `matches` must find, newest first: the text up to there, and the length of the match."""
    for order in ORDERS:
        if order > len(window):
            continue
        found = []
        for run in store.text.passages():
            for end in range(order, len(run)):  # continued, so not the last one
                before = run[:end]
                length = 0
                while length < min(end, len(window), MAX_MATCH) and before[-1 - length] == window[-1 - length]:
                    length += 1
                if length >= order:
                    found.append((before, length))
        if found:
            return found[::-1]
    return []


def text_before(store: SuffixStore, position: int) -> list[int]:
    tokens = []
    while position >= 0 and store.text.tokens[position] >= 0:
        tokens.append(store.text.tokens[position])
        position = store.text.before(position)
    return tokens[::-1]


passages = st.lists(
    st.builds(passage, st.integers(0, 99), st.integers(1, 150), st.sampled_from([2, 3, 40])), min_size=1, max_size=8
)


@settings(max_examples=40, deadline=None)
@given(passages, st.integers(0, 99), st.sampled_from([2 * BLOCK, 4 * BLOCK + 5, 10_000]))
def test_finds_what_a_search_finds_whatever_was_evicted(added, seed, max_tokens):
    store = SuffixStore(max_tokens)
    for tokens in added:
        store.add(tokens)
        store.check_integrity()
        assert len(store) <= max_tokens
    if max_tokens == 10_000:
        assert list(store.text.passages()) == added
    for window in (passage(seed, 12), passage(seed, 3), added[-1][:20], added[-1][-9:], [5]):
        expected = searched(store, window)
        found = store.matches(window)
        assert [match.length for match in found] == sorted((match.length for match in found), reverse=True)
        assert len(found) == min(len(expected), MAX_CANDIDATES) or len(expected) > MAX_CANDIDATES
        newest = sorted(expected[:MAX_CANDIDATES], key=lambda row: -row[1])
        assert [(text_before(store, match.position), match.length) for match in found] == newest


def test_what_follows_a_match_is_read_across_blocks_up_to_the_end_of_the_passage():
    store = SuffixStore(10_000)
    text = list(range(200))
    store.add(text)
    store.add([900, 901])
    (match,) = store.matches(text[:30])
    assert match.length == MAX_MATCH
    position, read = match.position, []
    while (position := store.text.after(position)) >= 0:
        read.append(store.text.tokens[position])
    assert read == text[30:]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 130), st.booleans()), min_size=1, max_size=25), st.integers(2, 6))
def test_never_holds_more_than_its_bound(additions, blocks):
    store = SuffixStore(blocks * BLOCK + 17)
    for number, (length, used) in enumerate(additions):
        text = [number * 1000 + at for at in range(length)]
        store.add(text)
        assert len(store) <= store.max_tokens
        assert len(store.text.tokens) <= blocks * BLOCK
        kept = [token for run in store.text.passages() for token in run]
        assert kept[-1] == text[-1], "the newest text is there"
        if used and len(text) > 10:
            store.use(match.position for match in store.matches(text[:-1][-8:]))
    store.check_integrity()


def test_what_is_used_stays_and_the_rest_goes_oldest_first():
    store = SuffixStore(4 * BLOCK)
    texts = [[1000 * number + at for at in range(BLOCK - 1)] for number in range(8)]  # one block each
    for text in texts[:4]:
        store.add(text)
    store.use(match.position for match in store.matches(texts[1][:20]))
    for text in texts[4:7]:
        store.add(text)
    held = [run[0] // 1000 for run in store.text.passages()]
    assert held == [1, 4, 5, 6]
    for number in (1, 5):
        assert store.matches(texts[number][:20]) == [Match(store.matches(texts[number][:20])[0].position, MAX_MATCH)]
    assert store.matches(texts[2][:20]) == []


def test_uses_of_long_ago_count_less_than_those_of_today():
    store = SuffixStore(3 * BLOCK)
    texts = [[1000 * number + at for at in range(BLOCK - 1)] for number in range(40)]
    store.add(texts[0])
    for _ in range(5):
        store.use(match.position for match in store.matches(texts[0][:20]))
    held = []
    for text in texts[1:]:
        store.add(text)
        store.use(match.position for match in store.matches(text[:20]))  # every new text is used once
        held.append(any(run[0] == 0 for run in store.text.passages()))
    assert held[4] and not held[-1]
    assert held == sorted(held, reverse=True)


def test_evicting_a_block_in_the_middle_leaves_the_rest_searchable():
    store = SuffixStore(5 * BLOCK)
    text = list(range(5 * BLOCK - 1))
    store.add(text)
    for at in (20, 90, 200, 280):  # all blocks but the third
        store.use(match.position for match in store.matches(text[:at]))
    store.add([5000, 5001, 5002])
    store.check_integrity()
    assert [run[0] for run in store.text.passages()] == [0, 3 * BLOCK, 5000]
    assert store.matches(text[: 2 * BLOCK]) == []  # continued in the block that is gone
    assert store.matches(text[: 3 * BLOCK + 4])[0].length == 4  # the match ends where the text does
    assert store.matches(text[: 3 * BLOCK + 1]) == []


@pytest.mark.parametrize("tokens", [5_000, 70_000])
def test_memory_per_token(tokens):
    store = SuffixStore(1 << 20)
    for seed in range(tokens // 500):
        store.add(passage(seed, 499, letters=30_000))
    assert len(store) == tokens // 500 * 500
    assert store.bytes <= 64 * len(store)
    counted = store.text.tokens.itemsize + sum(index.bytes for index in store._indexes) / len(store)
    assert store.bytes / len(store) > counted - 1, "the indexes and the text are counted"


def test_a_full_store_takes_no_more_memory():
    store = SuffixStore(40 * BLOCK)
    sizes = []
    for seed in range(12):
        store.add(passage(seed, 999))
        sizes.append(store.bytes)
    assert len(set(sizes[3:])) == 1
    assert sizes[-1] <= 64 * store.max_tokens


def test_one_key_for_one_context_however_it_is_computed():
    contexts = [passage(seed, 8, letters=200_000) for seed in range(50)]
    columns = [[context[place] for context in contexts] for place in range(8)]
    import numpy as np

    keys = context_keys([np.array(column, np.int32) for column in columns])
    assert keys.tolist() == [context_key(context) for context in contexts]
    assert len(set(keys.tolist())) == 50


def test_other_contexts_in_a_chain_are_passed_over():
    index = ContextIndex(2)
    index.resize(4)  # one bucket until it is built
    for position in range(4):
        index.insert(position, context_key([position, 1]))
    index.remove(2)
    assert list(index.chain(5)) == [3, 1, 0]
    index.remove(2)
    index.remove(3)
    index.remove(0)
    assert list(index.chain(5)) == [1]


def test_damage_is_noticed():
    store = SuffixStore(1000)
    store.add(passage(0, 300))
    store.text.tokens[5] += 1
    with pytest.raises(AssertionError, match="differs from what the text says"):
        store.check_integrity()
    store.text.tokens[5] -= 1
    store.check_integrity()
    store.text.following[0] = 3
    with pytest.raises(AssertionError, match="block 0 leads to 3"):
        store.check_integrity()


@pytest.mark.parametrize("token", [-1, 1 << 31])
def test_refuses_what_is_no_token_before_anything_is_written(token):
    store = SuffixStore(1000)
    with pytest.raises(ValueError, match=f"got {token}"):
        store.add([1, token])
    assert len(store) == 0


def test_refuses_a_bound_without_room_and_another_vocabulary():
    with pytest.raises(ValueError, match="at least 128 tokens, got max_tokens 127"):
        SuffixStore(127)
    store = SuffixStore()
    store.claim(100)
    store.claim(100)
    with pytest.raises(ValueError, match="vocabulary of 100, the model has 200"):
        store.claim(200)
