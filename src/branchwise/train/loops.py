"""Texts that run in circles, as small models' do. Knows token ids only."""

from __future__ import annotations

from collections.abc import Sequence

#: the longest stretch whose repetition counts as a loop
LONGEST_PERIOD = 48
#: so often the stretch must stand there, and at least so many tokens must be its repetitions
REPEATS = 3
LEAST_TOKENS = 24


def loop_start(tokens: Sequence[int]) -> int | None:
    """Where the second round of a loop at the end of ``tokens`` begins, or None when the end is no loop.

        a b c d e d e d e d e      with REPEATS 3, LEAST_TOKENS 6: period 2, the loop starts at 3, the answer is 5

    What stands before the returned place is a text that says everything once.
    """
    ids = list(tokens)
    for period in range(1, min(LONGEST_PERIOD, len(ids) // REPEATS) + 1):
        needed = max(REPEATS * period, LEAST_TOKENS)
        if needed > len(ids) or ids[-needed:-period] != ids[len(ids) - needed + period :]:
            continue
        start = len(ids) - needed
        while start > 0 and ids[start - 1] == ids[start - 1 + period]:
            start -= 1
        return start + period
    return None
