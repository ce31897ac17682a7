"""Loops at the end of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.train.loops import LEAST_TOKENS, LONGEST_PERIOD, REPEATS, loop_start

pytestmark = pytest.mark.core


def test_a_loop_is_cut_after_its_first_round() -> None:
    #  a b c | d e | d e d e ...        the first round stays
    text = [1, 2, 3, *[4, 5] * 20]
    assert loop_start(text) == 5
    assert text[: loop_start(text)] == [1, 2, 3, 4, 5]


def test_one_token_over_and_over() -> None:
    assert loop_start([7] * LEAST_TOKENS) == 1
    assert loop_start([7] * (LEAST_TOKENS - 1)) is None


def test_a_repetition_that_stopped_is_no_loop() -> None:
    assert loop_start([*[4, 5] * 20, 6]) is None


def test_a_long_stretch_needs_its_repeats() -> None:
    stretch = list(range(LONGEST_PERIOD))
    assert loop_start(stretch * REPEATS) == LONGEST_PERIOD
    assert loop_start(stretch * (REPEATS - 1)) is None
    longer = list(range(LONGEST_PERIOD + 1))
    assert loop_start(longer * 4) is None


@given(
    st.lists(st.integers(0, 50), max_size=20),
    st.lists(st.integers(0, 50), min_size=1, max_size=20),
    st.integers(REPEATS, 30),
)
def test_what_is_kept_says_everything_once(before: list[int], stretch: list[int], rounds: int) -> None:
    text = before + stretch * rounds
    start = loop_start(text)
    if len(stretch) * rounds >= LEAST_TOKENS:
        assert start is not None
    if start is not None:
        period = next(p for p in range(1, len(text)) if text[start:] == text[start - p : -p] and p <= LONGEST_PERIOD)
        assert start - period >= 0 and len(text) - start >= max(REPEATS * period, LEAST_TOKENS) - period
