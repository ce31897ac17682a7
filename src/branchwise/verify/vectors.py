"""The little arithmetic that the rules need: probability vectors that can be subtracted, thinned and drawn from.

Rules are written against `Vector` and know no number type. `Floats` is what they run on: float64 tensors, whatever type
the law and the proposal came in. The losslessness kit brings a second implementation in rationals, so that the very
same rule code can be checked for exact equality.

Every reading is of the *normalised* vector; the stored weights carry their sum along instead of being divided. Nothing
is ever changed in place: laws and proposals share storage with the target's output and with each other.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

#: float or Fraction
Number = Any

#: a residual mass below this counts as zero: dividing by it would overflow, and rejecting into it happens with
#: probability less than this
_ZERO_MASS = 1e-290


class Vector(Protocol):
    """A probability vector ``[V]``."""

    @property
    def weights(self) -> Any:
        """What `Coins.choice` is given; in proportion to the probabilities, not always normalised."""

    @property
    def is_zero(self) -> bool:
        """Whether no mass is left, so that there is nothing to normalise."""

    def at(self, token: int) -> Number:
        """Probability of ``token``."""

    def excess(self, other: Vector, scale: Number = 1) -> tuple[Vector, Number]:
        """The residual ``[scale * self - other]+``, normalised, and the mass it had before."""

    def without(self, token: int) -> tuple[Vector, Number]:
        """Zero at ``token``, renormalised, and the mass that is left of one."""

    def entropy(self) -> float:
        """In nats."""

    def tilted(self, target: Vector, low: Number, width: Number, k: int) -> Tilt:
        """The law of the next token of the best of ``k`` draws; see `best_path`."""


class Tilt(Protocol):
    """What `Vector.tilted` gives: a vector, and where in the order of all paths each token's interval lies."""

    @property
    def law(self) -> Vector:
        """The law of the chosen rollout's next token."""

    def interval(self, token: int) -> tuple[Number, Number]:
        """Lower end and width of the token's interval in [0, 1)."""


class Floats:
    """A `Vector` in float64. ``values`` is never written to."""

    __slots__ = ("mass", "values")

    def __init__(self, values: Tensor, mass: float | None = None) -> None:
        self.values = values  # [V]
        self.mass = float(values.sum()) if mass is None else mass

    @property
    def weights(self) -> Tensor:
        """The float64 tensor ``[V]``."""
        return self.values

    @property
    def is_zero(self) -> bool:
        """Whether the mass is zero, or so small that it could not be divided by."""
        return not self.mass > _ZERO_MASS

    def at(self, token: int) -> float:
        """Probability of ``token``."""
        return float(self.values[token]) / self.mass

    def excess(self, other: Vector, scale: float = 1.0) -> tuple[Floats, float]:
        """The residual ``[scale * self - other]+``, and its mass."""
        assert isinstance(other, Floats), "a rule mixes number types"
        rest = self.values * (scale / self.mass)  # [V], fresh: the in-place steps below touch nothing shared
        rest.add_(other.values, alpha=-1.0 / other.mass).clamp_(min=0.0)
        mass = float(rest.sum())
        return Floats(rest, mass), mass

    def without(self, token: int) -> tuple[Floats, float]:
        """Zero at ``token``, and the mass that is left of one."""
        rest = self.values.clone()  # [V]
        rest[token] = 0.0
        thinned = Floats(rest)
        return thinned, thinned.mass / self.mass

    def entropy(self) -> float:
        """In nats; 0 log 0 is 0."""
        return float(torch.special.entr(self.values / self.mass).sum())

    def tilted(self, target: Vector, low: float, width: float, k: int) -> FloatTilt:
        """The law of the next token of the best of ``k`` draws, for a prefix with interval [low, low + width)."""
        assert isinstance(target, Floats), "a rule mixes number types"
        return FloatTilt(self, target, low, width, k)


class FloatTilt:
    """See `best_path`: the tokens in ascending order of target over draft, as intervals inside the prefix's own."""

    def __init__(self, draft: Floats, target: Floats, low: float, width: float, k: int) -> None:
        support = torch.nonzero(draft.values)[:, 0]  # [S], ascending ids: the tie-break of a stable sort
        chances = draft.values[support] / draft.mass  # [S]
        order = torch.argsort(target.values[support] / chances, stable=True)
        self._ids = support[order]  # [S]
        self._widths = chances[order] * width
        self._lows = low + width * (torch.cumsum(chances[order], 0) - chances[order])
        # hi^k - lo^k without the cancellation: width * sum of hi^i lo^(k-1-i)
        highs = self._lows + self._widths
        selected = self._widths * sum(highs**i * self._lows ** (k - 1 - i) for i in range(k))
        values = torch.zeros_like(draft.values).index_put_((self._ids,), selected)
        self.law = Floats(values)

    def interval(self, token: int) -> tuple[float, float]:
        """Lower end and width of the token's interval in [0, 1)."""
        place = int((self._ids == token).nonzero()[0])
        return float(self._lows[place]), float(self._widths[place])


def lift(weights: Any) -> Vector:
    """A law or proposal as a `Vector`: a tensor becomes `Floats`, anything else is taken to be one already."""
    return Floats(weights.to(torch.float64)) if isinstance(weights, Tensor) else weights


def best_token(weights: Any) -> int:
    """The most probable token, the lowest id among equals; NaN counts as the largest."""
    if not isinstance(weights, Tensor):
        return weights.best_token()
    if weights.device.type != "cpu":
        return int(weights.argmax())
    return int(np.argmax(weights.numpy()))  # agrees with torch's argmax, which is thirty times slower on the CPU
