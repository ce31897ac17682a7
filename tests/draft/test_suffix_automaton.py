"""The suffix automaton against counting every substring of the text."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft.suffix_automaton import SuffixAutomaton

pytestmark = pytest.mark.core

texts = st.lists(st.integers(0, 3), max_size=40) | st.lists(st.integers(0, 1), max_size=40)


def ends(text: list[int], part: tuple[int, ...]) -> list[int]:
    return [end for end in range(len(part), len(text) + 1) if tuple(text[end - len(part) : end]) == part]


def followers(text: list[int], part: tuple[int, ...]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for end in ends(text, part):
        if end < len(text):
            counts[text[end]] = counts.get(text[end], 0) + 1
    return counts


def built(text: list[int], max_context: int = 32) -> SuffixAutomaton:
    automaton = SuffixAutomaton(max_context)
    automaton.extend(text)
    return automaton


def read(automaton: SuffixAutomaton, part: tuple[int, ...]) -> int | None:
    state: int | None = 0
    for token in part:
        state = automaton.move(state, token)
        if state is None:
            return None
    return state


def longest_known(text: list[int], wanted: list[int], most: int) -> tuple[int, ...]:
    """The longest suffix of ``wanted``, of at most ``most`` tokens, that occurs in the text."""
    for length in range(min(most, len(wanted)), 0, -1):
        if ends(text, tuple(wanted[len(wanted) - length :])):
            return tuple(wanted[len(wanted) - length :])
    return ()


@settings(max_examples=60, deadline=None)
@given(text=texts, max_context=st.sampled_from([1, 2, 3, 5, 32]))
def test_spells_every_substring_and_counts_those_that_are_short_enough(text, max_context):
    automaton = built(text, max_context)
    automaton.check_integrity()
    substrings = {tuple(text[i:j]) for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    for part in substrings:
        state = read(automaton, part)
        assert state is not None
        if len(part) <= max_context + 1:
            assert automaton._count[state] == len(ends(text, part))
            assert automaton._latest[state] == ends(text, part)[-1]
    for part in [(*part, token) for part in substrings if len(part) < 4 for token in range(4)]:
        assert (read(automaton, part) is not None) == (part in substrings)


@settings(max_examples=60, deadline=None)
@given(text=texts.filter(bool), path=st.lists(st.integers(0, 3), max_size=5), max_context=st.sampled_from([2, 4, 32]))
def test_continuations_are_what_followed_the_longest_known_context_and_its_suffixes(text, path, max_context):
    automaton = built(text, max_context)
    place = automaton.place()
    # at the root the context must have occurred before, that is, been continued
    known = longest_known(text[:-1], text, max_context)
    assert place[1] == len(known) or not followers(text, known)
    for token in path:
        place = automaton.advance(place, token)
        known = longest_known(text, [*known, token], max_context)
        assert place[1] == len(known)
    found = automaton.continuations(place, most=99)
    contexts = [known[start:] for start in range(len(known))]  # longest first, not the empty one
    # contexts that end at the same positions are one; so are those with one continuation, counted at the shortest
    merged: list[tuple[int, dict[int, int]]] = []
    last_ends: list[int] = []
    for part in contexts:
        counts = followers(text, part)
        if not counts:
            continue
        if merged and (len(counts) == 1 or ends(text, part) == last_ends):
            merged[-1] = (merged[-1][0], counts)
        else:
            merged.append((len(part), counts))
        last_ends = ends(text, part)
    assert [(length, counts) for length, counts, _ in found] == merged
    for _, counts, total in found:
        assert total == sum(counts.values())
        assert list(counts.values()) == sorted(counts.values(), reverse=True)


@settings(max_examples=40, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 40), max_size=5))
def test_growing_in_pieces_gives_the_same_automaton(text, cuts):
    grown = SuffixAutomaton()
    for start, end in pairwise(sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})):
        grown.extend(text[start:end])
        grown.place()  # reading in between changes nothing
    whole = built(text)
    assert (grown._moves, grown._link, grown._count, grown._latest) == (
        whole._moves,
        whole._link,
        whole._count,
        whole._latest,
    )


def test_by_hand():
    # the drawing in the module's docstring
    automaton = built([1, 2, 1, 3])
    assert automaton.states == 5
    assert list(automaton._link) == [-1, 0, 0, 1, 0]
    assert list(automaton._count)[1:] == [2, 1, 1, 1]
    assert automaton.place() == (0, 0)  # 3 is new
    automaton.extend([1])
    assert automaton.continuations(automaton.place(), most=3) == [(1, {3: 1, 2: 1}, 2)]  # 3 was first seen last


def test_one_token_over_and_over_costs_no_more_than_any_text():
    automaton = built([7] * 3000, max_context=4)
    automaton.check_integrity()
    assert automaton.place()[1] == 4
    ((length, counts, total),) = automaton.continuations(automaton.place(), most=3)
    assert (length, counts, total) == (4, {7: 2999}, 2999)  # the shortest context, "7", was continued 2999 times


def test_a_ranking_is_exact_at_first_and_at_most_a_sixteenth_old_later():
    random_ = random.Random(0)
    text: list[int] = []
    automaton = SuffixAutomaton()
    for _ in range(600):
        text += [0, random_.choice([1, 1, 1, 2, 2, 3])]
        automaton.extend(text[-2:])
        place = automaton.advance((0, 0), 0)
        if isinstance(automaton._moves[place[0]], dict):
            ((_, counts, total),) = automaton.continuations(place, most=1)
            exact = followers(text, (0,))
            if sum(exact.values()) <= 16:
                assert counts == exact
            assert total == sum(counts.values())
            assert sum(exact.values()) - total <= total / 16


def test_damage_is_noticed():
    automaton = built([1, 2, 1, 3, 1, 2, 2, 1])
    automaton._count[1] -= 3
    with pytest.raises(AssertionError, match="counts"):
        automaton.check_integrity()
    automaton = built([1, 2, 1, 3])
    automaton._link[1] = 1
    with pytest.raises(AssertionError, match="link of state 1"):
        automaton.check_integrity()


def test_a_context_has_a_token():
    with pytest.raises(ValueError, match="got max_context 0"):
        SuffixAutomaton(0)
