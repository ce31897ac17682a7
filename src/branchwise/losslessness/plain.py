"""Probability vectors over a handful of tokens in plain Python numbers: rationals, or floats.

The second implementation of `branchwise.verify.vectors.Vector`. With `fractions.Fraction` inside nothing is ever
rounded, so a rule that is exact shows a distance of 0, not of 1e-16. Knows nothing of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..verify.vectors import Number, Vector


class Plain:
    """A normalised vector of numbers, or all zeros. Immutable.

    Results are remembered: an enumeration plays the same rounds thousands of times, and rationals are slow.
    """

    __slots__ = ("_memo", "is_zero", "values")

    def __init__(self, weights: Sequence[Number]) -> None:
        total = sum(weights)
        self.is_zero = not total > 0
        self.values = tuple(weights) if self.is_zero or total == 1 else tuple(weight / total for weight in weights)
        self._memo: dict[object, tuple[Plain, Number]] = {}

    def __repr__(self) -> str:
        return f"Plain({', '.join(map(str, self.values))})"

    @property
    def weights(self) -> Plain:
        """Itself: `EnumeratingCoins.choice` takes it."""
        return self

    def at(self, token: int) -> Number:
        """Probability of ``token``."""
        return self.values[token]

    def excess(self, other: Vector, scale: Number = 1) -> tuple[Plain, Number]:
        """The residual ``[scale * self - other]+``, normalised, and the mass it had before."""
        known = self._memo.get((other, scale))
        if known is None:
            assert isinstance(other, Plain), "a rule mixes number types"
            rest = [max(scale * mine - theirs, 0) for mine, theirs in zip(self.values, other.values, strict=True)]
            known = self._memo[(other, scale)] = (Plain(rest), sum(rest))
        return known

    def without(self, token: int) -> tuple[Plain, Number]:
        """Zero at ``token``, renormalised, and the mass that is left of one."""
        known = self._memo.get(token)
        if known is None:
            rest = [0 if i == token else value for i, value in enumerate(self.values)]
            known = self._memo[token] = (Plain(rest), sum(rest))
        return known

    def entropy(self) -> float:
        """In nats; a float even among rationals."""
        return -sum(float(value) * math.log(value) for value in self.values if value > 0)

    def tilted(self, target: Vector, low: Number, width: Number, k: int) -> TiltedPlain:
        """The law of the next token of the best of ``k`` draws; arguments as for `Vector.tilted`."""
        return TiltedPlain(self, target, low, width, k)

    def best_token(self) -> int:
        """The most probable token, the lowest id among equals."""
        return self.values.index(max(self.values))

    def ranked(self) -> list[int]:
        """Tokens of positive probability, the most probable first, the lowest id first among equals."""
        return sorted((i for i, value in enumerate(self.values) if value > 0), key=lambda i: (-self.values[i], i))


class TiltedPlain(Plain):
    """As `branchwise.verify.vectors.TiltedFloats`, by a loop over tokens."""

    __slots__ = ("_intervals",)

    def __init__(self, draft: Plain, target: Vector, low: Number, width: Number, k: int) -> None:
        support = [token for token, value in enumerate(draft.values) if value > 0]
        self._intervals: dict[int, tuple[Number, Number]] = {}
        selected = [0 * width] * len(draft.values)
        for token in sorted(support, key=lambda token: (target.at(token) / draft.values[token], token)):
            share = width * draft.values[token]
            self._intervals[token] = (low, share)
            selected[token] = (low + share) ** k - low**k
            low = low + share
        super().__init__(selected)

    def interval(self, token: int) -> tuple[Number, Number]:
        """Lower end and width of the token's interval in [0, 1)."""
        return self._intervals[token]
