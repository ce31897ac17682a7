"""Drawing children: tokens, together with the very vector they were drawn from.

A drafter that samples must hand over what it sampled from: `sample_children` draws and wraps the vector in one call, so
the two cannot come apart. What is known in advance to be impossible (deterministic
siblings, tokens a grammar forbids) is masked out *before* drawing, by `masked`.

Drawing one after the other without replacement has the law of an exponential race (the k smallest of E_x / q_x with
independent exponentials E_x, also known as Gumbel top-k; Efraimidis and Spirakis 2006, Kool et al. 2019). It is drawn
here by inverting the cumulative sum k times with the taken tokens skipped: k uniforms and one pass over the vocabulary
instead of one logarithm per token.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .coins import SeededCoins
from .proposal import Sampled
from .rule import Coins
from .vectors import Floats, lift


def masked(vector: Tensor, tokens: Iterable[int]) -> Tensor | None:
    """``vector`` with zeros at ``tokens``, renormalised; a new tensor, or None when nothing is left."""
    rest = vector.clone()
    ids = torch.as_tensor(list(tokens), dtype=torch.long, device=vector.device)
    rest[ids] = 0.0
    total = rest.sum(dtype=torch.float64)
    return None if not float(total) > 0 else (rest / total).to(vector.dtype)


def sample_children(vector: Tensor, k: int, coins: Coins, replacement: bool = False) -> tuple[tuple[int, ...], Sampled]:
    """Draws up to ``k`` children of one node and says how.

    Args:
        vector: ``[V]`` probabilities after temperature, truncation, vocabulary trimming and rounding. Kept by reference
            and not to be changed afterwards.
        k: how many to draw. Without replacement there are fewer when the support is smaller.
        coins: the drafter's coins, independent of the verifier's (`SeededCoins.drafting`).
        replacement: whether a token may be drawn again.

    Returns:
        The tokens in draw order, and the one proposal they all share.
    """
    draw = draw_with_replacement if replacement else draw_without_replacement
    return draw(vector, k, coins), Sampled(vector, replacement)


def draw_with_replacement(vector: Any, k: int, coins: Coins) -> tuple[int, ...]:
    """``k`` independent draws, duplicates included."""
    return tuple(coins.choice(vector) for _ in range(k))


def draw_without_replacement(vector: Any, k: int, coins: Coins) -> tuple[int, ...]:
    """Up to ``k`` distinct tokens: each from ``vector`` without the earlier ones, renormalised."""
    if isinstance(vector, Tensor) and isinstance(coins, SeededCoins):
        return _skip_taken(vector, k, coins)
    rest = lift(vector)
    tokens: list[int] = []
    while len(tokens) < k and not rest.is_zero:
        tokens.append(coins.choice(rest.weights))
        rest, _ = rest.without(tokens[-1])
    return tuple(tokens)


def _skip_taken(vector: Tensor, k: int, coins: SeededCoins) -> tuple[int, ...]:
    """The same on one cumulative sum: a draw lands in the mass that is left, and steps over what is taken.

    weights      |  a  |   b   | c |    d    |      b taken, u * (a + c + d) = target
    what is left |  a  |         c |    d    |      target beyond a: add b, then look up
    """
    cumulative = torch.cumsum(vector, 0, dtype=torch.float64)  # [V]
    total = left = float(cumulative[-1])
    tokens: list[int] = []
    taken: list[int] = []  # ascending ids
    weight: dict[int, float] = {}
    while len(tokens) < k:
        token = -1
        if left > _DIGITS_LEFT * total:
            target = coins.uniform() * left
            for earlier in taken:
                if target >= float(cumulative[earlier]) - weight[earlier]:
                    target += weight[earlier]
            if target < total:
                token = int(torch.searchsorted(cumulative, target, right=True))
        if token < 0 or token in weight or not float(vector[token]) > 0:
            # little is left, or rounding met a border: start afresh without the taken tokens
            rest = vector.to(torch.float64, copy=True)  # [V]
            rest[taken] = 0.0
            if Floats(rest).is_zero:
                break
            token = coins.choice(rest)
        tokens.append(token)
        insort(taken, token)
        weight[token] = float(vector[token])
        left -= weight[token]
    return tuple(tokens)


#: share of the mass below which ``left``, a difference, has lost digits that the law of a rare token needs
_DIGITS_LEFT = 1e-3
