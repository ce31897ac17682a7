"""Coins that take every outcome, each with its exact weight.

A procedure that flips coins is a tree of outcomes. It is walked depth first by playing the procedure again and again: a
script says how the first coins fall, the first coin beyond the script takes its first outcome, and after each play the
last coin that has an outcome left is moved on.

    play 1:  H  H      script ()        weight 1/4
    play 2:  H  T      script (H, T)    weight 1/4
    play 3:  T         script (T,)      weight 1/2, a procedure that stops after tails
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..verify.vectors import Number

Result = TypeVar("Result")


class EnumeratingCoins:
    """`branchwise.verify.Coins` under a script; see `outcomes`. Outcomes of weight 0 are never taken."""

    def __init__(self) -> None:
        #: per coin of the current script: outcomes still to take (the current one last), and the weight before it
        self._coins: list[tuple[list[tuple[int, Number]], Number]] = []
        self._thrown = 0
        self.weight: Number = 1

    def bernoulli(self, p: Number) -> bool:
        """Both outcomes, with weights p and 1 - p; one alone when p <= 0 or p >= 1."""
        if p <= 0 or p >= 1:
            return p >= 1
        return bool(self._throw(lambda: [(0, 1 - p), (1, p)]))

    def choice(self, vector: Any) -> int:
        """Every token of positive weight."""
        return self._throw(lambda: _shares(vector))

    def _throw(self, outcomes: Callable[[], list[tuple[int, Number]]]) -> int:
        if self._thrown == len(self._coins):
            self._coins.append((outcomes(), self.weight))
        left, before = self._coins[self._thrown]
        outcome, share = left[-1]
        self._thrown += 1
        self.weight = before * share
        return outcome

    def _next(self) -> bool:
        """Moves the script on; False when every outcome was taken."""
        while self._coins:
            left, _ = self._coins[-1]
            left.pop()
            if left:
                break
            self._coins.pop()
        self._thrown = 0
        self.weight = 1
        return bool(self._coins)


def outcomes(play: Callable[[EnumeratingCoins], Result]) -> Iterator[tuple[Result, Number]]:
    """Every result of ``play`` with its weight; the weights sum to one. ``play`` must use no other randomness."""
    coins = EnumeratingCoins()
    while True:
        result = play(coins)
        yield result, coins.weight
        if not coins._next():
            return


def _normalised(vector: Tensor) -> list[float]:
    wide = vector.to(torch.float64)
    values: list[float] = (wide / wide.sum()).tolist()
    return values


def _shares(vector: Any) -> list[tuple[int, Number]]:
    # a tensor may be a residual that was not normalised; a Plain always is
    values = _normalised(vector) if isinstance(vector, Tensor) else vector.values
    shares = [(token, value) for token, value in enumerate(values) if value > 0]
    if not shares:
        raise ValueError("a rule drew from a vector without mass")
    return shares
