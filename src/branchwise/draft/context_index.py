"""Positions of a text by the tokens that end there, for contexts of one length. Knows hashes and position numbers.

Every bucket is a chain of positions, newest first, linked both ways so that any position can leave in constant time:

    heads[bucket] -> 17 -older-> 9 -older-> 4 -older-> none
                        <-newer-   <-newer-            newer[17] says which bucket it heads
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NONE = -1
#: odd, without a pattern in its bits: the fractional part of the golden ratio
MULTIPLIER = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1

Words = NDArray[np.uint64]
Numbers = NDArray[Any]


def context_key(newest_first: Sequence[int]) -> int:
    """64-bit hash of a context: ``sum_i token_i * MULTIPLIER^(i + 1)`` modulo 2^64, the last token first."""
    key, factor = 0, 1
    for token in newest_first:
        factor = factor * MULTIPLIER & WORD
        key += token * factor
    return key & WORD


def context_keys(newest_first: Sequence[Numbers]) -> Words:
    """The same for many contexts at once: one column of tokens per place, the last tokens first."""
    keys = np.zeros(len(newest_first[0]), np.uint64)
    factor = 1
    for column in newest_first:
        factor = factor * MULTIPLIER & WORD
        keys += column.astype(np.uint64) * np.uint64(factor)
    return keys


class ContextIndex:
    """Chains of positions, one per bucket; as many buckets as positions, rounded up to a power of two.

    16 bytes per position at most.

    Args:
        order: tokens of a context.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self._bits = 0
        self._heads = array("i", [_NONE])
        self._older = array("i")
        self._newer = array("i")  # of a head: -2 - bucket; of a position that is not in any chain: -1

    @property
    def bytes(self) -> int:
        """Memory of the chains, with what the arrays hold in reserve."""
        return sum(map(getsizeof, (self._heads, self._older, self._newer)))

    @property
    def is_crowded(self) -> bool:
        """Whether there are more positions than buckets: time to `build` again."""
        return len(self._older) > len(self._heads)

    def resize(self, positions: int) -> None:
        """Makes room for positions below ``positions``."""
        blank = array("i", [_NONE]) * (positions - len(self._older))
        self._older.extend(blank)
        self._newer.extend(blank)

    def insert(self, position: int, key: int) -> None:
        """Puts a position that is in no chain at the new end of its chain."""
        bucket = self._bucket(key)
        head = self._heads[bucket]
        self._older[position] = head
        self._newer[position] = -2 - bucket
        if head != _NONE:
            self._newer[head] = position
        self._heads[bucket] = position

    def remove(self, position: int) -> None:
        """Takes a position out of its chain; nothing happens if it is in none."""
        newer, older = self._newer[position], self._older[position]
        if newer == _NONE:
            return
        if newer < _NONE:
            self._heads[-2 - newer] = older
        else:
            self._older[newer] = older
        if older != _NONE:
            self._newer[older] = newer
        self._newer[position] = self._older[position] = _NONE

    def chain(self, key: int) -> Iterator[int]:
        """Positions that may end the context with this key, newest first. Other contexts may share the chain."""
        older = self._older
        position = self._heads[self._bucket(key)]
        while position != _NONE:
            yield position
            position = older[position]

    def build(self, capacity: int, positions: Numbers, keys: Words) -> None:
        """Makes all chains anew, with at least as many buckets as positions.

        Args:
            capacity: room for positions below this.
            positions: ``[N]``, oldest first.
            keys: ``[N]``.
        """
        self._bits = max(capacity - 1, 0).bit_length()
        heads = np.full(1 << self._bits, _NONE, np.int32)
        older = np.full(capacity, _NONE, np.int32)
        newer = np.full(capacity, _NONE, np.int32)
        buckets = (keys >> np.uint64(64 - self._bits)).astype(np.int64) if self._bits else np.zeros(len(keys), np.int64)
        order = np.argsort(buckets, kind="stable")
        positions, buckets = positions[order], buckets[order]
        same = buckets[1:] == buckets[:-1]
        older[positions[1:][same]] = positions[:-1][same]
        newer[positions[:-1][same]] = positions[1:][same]
        is_head = np.append(~same, True)[: len(positions)]
        heads[buckets[is_head]] = positions[is_head]
        newer[positions[is_head]] = -2 - buckets[is_head]
        self._heads, self._older, self._newer = (_as_array(part) for part in (heads, older, newer))

    def check_equal(self, other: ContextIndex) -> None:
        """Raises AssertionError when the chains differ."""
        mine, theirs = (self._heads, self._older, self._newer), (other._heads, other._older, other._newer)
        for name, one, two in zip(("heads", "older", "newer"), mine, theirs, strict=True):
            assert one == two, f"contexts of {self.order} tokens: {name} differs from what the text says"

    def _bucket(self, key: int) -> int:
        return key >> (64 - self._bits)


def _as_array(numbers: Numbers) -> array[int]:
    result = array("i")
    result.frombytes(numbers.tobytes())
    return result
