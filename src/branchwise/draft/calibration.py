"""Turning what a source claims into what it turned out to be worth. Knows numbers only."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import sqrt

#: claims are bucketed by their square root, so that small ones, of which there are many, are told apart
BUCKETS = 16


class Calibration:
    """A reliability curve kept up to date: of the children claimed at about this probability, how many were right.

    Each bucket keeps the sum of claims and of hits; a claim is corrected by the bucket's ratio of the two, so that
    claims keep their order within a bucket. Sources that claim too much and sources that claim too little become
    comparable.

    Args:
        strength: sum of claims for which a bucket is taken at its word before it has a record.
        memory: both sums are halved when the claims exceed this, so that old records fade.
    """

    def __init__(self, strength: float = 4.0, memory: float = 256.0) -> None:
        self.memory = memory
        self._claimed = array("d", [strength] * BUCKETS)
        self._hits = array("d", [strength] * BUCKETS)
        self._ratio = array("d", [1.0] * (BUCKETS + 1))  # a claim of 1 has the last bucket's, see `correct`

    @property
    def counts(self) -> tuple[array[float], array[float], array[float]]:
        """What there is to change when something is learned: claims, hits and ratios, which keep their places."""
        return self._claimed, self._hits, self._ratio

    def correct(self, claims: Mapping[int, float], sources: Mapping[int, str]) -> list[tuple[int, float, str]]:
        """Tokens, their claims as experience has them, at most 1, and their sources.

        Args:
            claims: by token, at most 1.
            sources: by token; handed through.
        """
        ratio = self._ratio
        return [
            # `_bucket` and `min`, inlined
            (token, e if (e := claim * ratio[int(sqrt(claim) * BUCKETS)]) < 1.0 else 1.0, sources[token])
            for token, claim in claims.items()
        ]

    def learn(self, claim: float, hit: bool) -> None:
        """A child claimed at ``claim``, whose parent was accepted, was right or was not."""
        bucket = _bucket(claim)
        self._claimed[bucket] += claim
        self._hits[bucket] += hit
        if self._claimed[bucket] > self.memory:
            self._claimed[bucket] *= 0.5
            self._hits[bucket] *= 0.5
        self._ratio[bucket] = self._hits[bucket] / self._claimed[bucket]
        self._ratio[BUCKETS] = self._ratio[BUCKETS - 1]


def _bucket(claim: float) -> int:
    return min(BUCKETS - 1, int(sqrt(claim) * BUCKETS))
