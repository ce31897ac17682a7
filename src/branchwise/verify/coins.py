"""Seeded coins: the randomness of one lane as a pure function of (seed, return index, position).

Nothing here keeps a generator state. A draw is a hash of where it is made, so it does not matter in how many steps,
with which drafter or beside which other lanes a token is reached:

    draw                        keyed by
    k-th `choice` of a step     (seed, return index, "choice",    position + k)
    n-th `bernoulli` of a step  (seed, return index, "bernoulli", position, n)
    n-th draw of the drafter    (seed, return index, "draft",     position, n)

``position`` is the number of committed tokens of the lane, root included and padding excluded: the absolute index of
the next token. A rule that calls `choice` once per emitted token, in order, therefore uses for every token the very
coin that plain decoding would use. The drafter has a domain of its own, because a draft that saw the coins of its
verifier would not be verified (the coins of the two must be independent); it also needs the counter, because
consecutive steps draft the same positions again and a coin used twice would tie the second draft to the first.

The hash is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a counter
walks by the golden-ratio constant and a finaliser of two multiplications mixes it. Every part of the key is absorbed by
one more round, so streams of different keys start at unrelated points of the 2^64 cycle.
"""

from __future__ import annotations

import secrets
from typing import Final

import torch
from torch import Tensor

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: the counter visits every word before it repeats
_UNIT: Final = 2.0**-53  # the top 53 bits of a word make a float64 in [0, 1) with nothing rounded

_CHOICE: Final = 1
_BERNOULLI: Final = 2
_DRAFT: Final = 3


def _mix(word: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every input bit flips about half the output."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _absorb(key: int, part: int) -> int:
    """A new key from ``key`` and one more part of the address."""
    return _mix((_mix((key + _GOLDEN) & _WORD) + part * _GOLDEN) & _WORD)


def _uniform(key: int, counter: int) -> float:
    """The ``counter``-th draw of the stream ``key``, uniform on [0, 1)."""
    return (_mix((key + (counter + 1) * _GOLDEN) & _WORD) >> 11) * _UNIT


class SeededCoins:
    """The coins of one step of one lane; `at` gives those of another step.

    Args:
        seed: 0 <= seed < 2^64; None takes fresh entropy from the operating system.
        return_index: which of several returned sequences (or rows) this lane is; lanes of one seed differ by it.
        position: committed tokens of the lane, root included, without padding.

    Raises:
        ValueError: the seed is out of range.
    """

    __slots__ = ("_bernoulli_key", "_choice_key", "_choices", "_counter", "_draft_key", "_drafts", "position", "seed")

    def __init__(self, seed: int | None = None, return_index: int = 0, position: int = 0) -> None:
        if seed is None:
            seed = secrets.randbits(64)
        if not 0 <= seed <= _WORD:
            raise ValueError(f"a seed must be in [0, 2**64), got {seed}")
        lane_key = _absorb(_absorb(0, seed), return_index & _WORD)
        self.seed = seed
        self._choice_key = _absorb(lane_key, _CHOICE)
        self._bernoulli_key = _absorb(lane_key, _BERNOULLI)
        self._draft_key = _absorb(lane_key, _DRAFT)
        self._start(position, drafts=False)

    def _start(self, position: int, drafts: bool) -> None:
        self.position = position
        self._drafts = drafts
        self._choices = 0
        self._counter = _absorb(self._draft_key if drafts else self._bernoulli_key, position)

    def _moved(self, position: int, drafts: bool) -> SeededCoins:
        coins = SeededCoins.__new__(SeededCoins)
        coins.seed = self.seed
        coins._choice_key = self._choice_key
        coins._bernoulli_key = self._bernoulli_key
        coins._draft_key = self._draft_key
        coins._start(position, drafts)
        return coins

    def at(self, position: int) -> SeededCoins:
        """The same lane's coins for the step that starts with ``position`` committed tokens (root included)."""
        return self._moved(position, self._drafts)

    def drafting(self) -> SeededCoins:
        """The drafter's coins at this position: independent of everything a rule draws, at any position."""
        return self._moved(self.position, True)

    def uniform(self) -> float:
        """The next draw of this step's counted stream (not of the `choice` stream), uniform on [0, 1)."""
        # walking the counter word itself saves a multiplication of big integers per draw
        self._counter = (self._counter + _GOLDEN) & _WORD
        return (_mix(self._counter) >> 11) * _UNIT

    def bernoulli(self, p: float) -> bool:
        """True with probability ``p``; strictly below, so never at p == 0 and always at p >= 1."""
        return self.uniform() < p

    def choice(self, vector: Tensor) -> int:
        """A token drawn from the probability vector ``[V]``; never one of probability 0."""
        if self._drafts:
            return choose(vector, self.uniform())
        u = _uniform(self._choice_key, self.position + self._choices)
        self._choices += 1
        return choose(vector, u)


def choose(vector: Tensor, u: float) -> int:
    """The token at quantile ``u`` of a probability vector: inverse of its cumulative sum, in float64.

    Args:
        vector: ``[V]`` weights >= 0 of any float type; their sum need not be exactly one.
        u: in [0, 1). Token x is taken when u lies in [F(x - 1), F(x)): its own weight is then positive.

    Raises:
        ValueError: a weight is NaN, infinite or negative, or all are zero.
    """
    cumulative = torch.cumsum(vector, 0, dtype=torch.float64)  # [V]
    total = float(cumulative[-1])
    lowest = float(vector.amin())  # NaN when any weight is
    if not (lowest >= 0.0 and 0.0 < total < float("inf")):
        raise ValueError(_why_no_choice(vector))
    if total < 1e-290:  # products below are then too coarse: denormal numbers have few digits
        return choose(vector.to(torch.float64) / vector.amax().to(torch.float64), u)
    token = int(torch.searchsorted(cumulative, u * total, right=True))
    # two roundings can miss: u * total may round up to total, and a parallel sum (on an accelerator) may step over a
    # weight of zero. Both are repaired by the nearest token that can be drawn.
    if token >= len(vector) or not float(vector[token]) > 0.0:
        positive = torch.nonzero(vector)[:, 0]  # [support]
        token = int(positive[min(int(torch.searchsorted(positive, token)), len(positive) - 1)])
    return token


def _why_no_choice(vector: Tensor) -> str:
    if bool(vector.isnan().any()):
        first = int(vector.isnan().nonzero()[0])
        return f"a probability vector held NaN (first at token {first}): the logits held NaN or forbade every token"
    if bool(vector.isinf().any()):
        return f"a probability vector held an infinite weight at token {int(vector.isinf().nonzero()[0])}"
    if bool((vector < 0).any()):
        first = int((vector < 0).nonzero()[0])
        return f"a probability vector held a negative weight at token {first}: {float(vector[first])}"
    return "a probability vector was zero everywhere: there is no token to draw"
