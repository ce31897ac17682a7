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

    def tilted(self, target: Vector, low: Number, width: Number, k: int) -> Tilted:
        """The law of the next token of the best of ``k`` draws, this being the law of one draw; see `best_path`.

        Args:
            target: the target's law after the same prefix.
            low: lower end of the prefix's interval in the order of all rollouts.
            width: width of that interval.
            k: number of draws.
        """


class Tilted(Vector, Protocol):
    """What `Vector.tilted` gives."""

    def interval(self, token: int) -> tuple[Number, Number]:
        """Lower end and width of the token's interval in [0, 1)."""


class Floats:
    """A `Vector` over a tensor, computed in float64. The tensor is never written to.

    A law that is only read at a token or two is not widened: a float64 copy of a vocabulary costs more than reading it.
    """

    __slots__ = ("mass", "values")

    def __init__(self, values: Tensor, mass: float | None = None) -> None:
        self.values = values  # [V], any float type
        self.mass = float(values.to(torch.float64).sum()) if mass is None else mass

    @property
    def weights(self) -> Tensor:
        """The tensor ``[V]``."""
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
        if len(other.values) != len(self.values):
            raise ValueError(
                f"the target's law covers {len(self.values)} tokens but a proposal covers {len(other.values)}; "
                "a proposal must be given over the target's vocabulary"
            )
        rest = self.values.to(torch.float64, copy=True)  # [V], ours: the steps in place touch nothing shared
        rest.mul_(scale / self.mass)
        rest.add_(other.values.to(torch.float64), alpha=-1.0 / other.mass).clamp_(min=0.0)
        mass = float(rest.sum())
        return Floats(rest, mass), mass

    def without(self, token: int) -> tuple[Floats, float]:
        """Zero at ``token``, and the mass that is left of one."""
        rest = self.values.to(torch.float64, copy=True)  # [V]
        rest[token] = 0.0
        thinned = Floats(rest)
        return thinned, thinned.mass / self.mass

    def entropy(self) -> float:
        """In nats; 0 log 0 is 0."""
        return float(torch.special.entr(self.values.to(torch.float64) / self.mass).sum())

    def tilted(self, target: Vector, low: float, width: float, k: int) -> TiltedFloats:
        """The law of the next token of the best of ``k`` draws; arguments as for `Vector.tilted`."""
        assert isinstance(target, Floats), "a rule mixes number types"
        return TiltedFloats(self, target, low, width, k)


class TiltedFloats(Floats):
    """The draft's law tilted towards tokens that the target prefers; see `best_path`.

    The interval of one token is a masked sum. Only when the whole vector is asked for are the tokens sorted.
    """

    __slots__ = ("_chances", "_k", "_low", "_ratios", "_sorted", "_width")

    def __init__(self, draft: Floats, target: Floats, low: float, width: float, k: int) -> None:
        self._chances = draft.values.to(torch.float64) / draft.mass  # [V]
        self._ratios = target.values.to(torch.float64) / self._chances  # [V], infinite or NaN where the draft is 0
        self._low, self._width, self._k = low, width, k
        self._sorted: Tensor | None = None
        self.mass = float(_power_gap(low, width, k))

    def interval(self, token: int) -> tuple[float, float]:
        """Lower end and width of the token's interval: the tokens before it ascend by ratio, then by id."""
        ratio = self._ratios[token]
        before = float(self._chances[self._ratios < ratio].sum())
        before += float(self._chances[:token][self._ratios[:token] == ratio].sum())
        return self._low + self._width * before, self._width * float(self._chances[token])

    def at(self, token: int) -> float:
        """Probability of ``token``."""
        return float(_power_gap(*self.interval(token), self._k)) / self.mass if self.mass > 0 else 0.0

    @property
    # computed when asked for, where the base class keeps it
    def values(self) -> Tensor:  # type: ignore[override]
        """Weights ``[V]`` of all tokens."""
        if self._sorted is None:
            support = torch.nonzero(self._chances)[:, 0]  # [S], ascending ids: the tie-break of a stable sort
            ids = support[torch.argsort(self._ratios[support], stable=True)]
            widths = self._width * self._chances[ids]
            lows = self._low + (torch.cumsum(widths, 0) - widths)
            self._sorted = torch.zeros_like(self._chances).index_put_((ids,), _power_gap(lows, widths, self._k))
        return self._sorted


def _power_gap(low: Number, width: Number, k: int) -> Number:
    """``(low + width)^k - low^k`` without cancellation: width times the sum of (low + width)^i low^(k-1-i)."""
    high = low + width
    return width * sum(high**i * low ** (k - 1 - i) for i in range(k))


def lift(weights: Any) -> Vector:
    """A law or proposal as a `Vector`: a tensor becomes `Floats`, anything else is taken to be one already."""
    return Floats(weights) if isinstance(weights, Tensor) else weights


def best_token(weights: Any) -> int:
    """The most probable token, the lowest id among equals; NaN counts as the largest."""
    if not isinstance(weights, Tensor):
        return weights.best_token()
    if weights.device.type != "cpu":
        return int(weights.argmax())
    return int(np.argmax(weights.numpy()))  # agrees with torch's argmax, which is thirty times slower on the CPU
