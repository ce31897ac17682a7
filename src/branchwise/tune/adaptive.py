"""Budget "auto": the size that gives most tokens per second, learned while generating.

Every candidate size keeps a decayed average of tokens and seconds per step. The best ratio is used; the others are
probed now and then, more rarely the worse they did, so that plain decoding takes over where trees do not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..decode.statistics import StepSeconds

CANDIDATES = (1, 5, 9, 17, 33)
#: weight of the past at each visit of a candidate
DECAY = 0.95
#: visits of every candidate before any choice is made
FIRST_VISITS = 2
#: between two probes the chosen candidate runs this many steps at least
PROBE_EVERY = 24


@dataclass
class _Arm:
    """Decayed sums for one candidate size."""

    tokens: float = 0.0
    seconds: float = 0.0
    weight: float = 0.0
    visits: int = 0
    last_visit: int = 0

    def add(self, tokens: float, seconds: float, step: int) -> None:
        self.tokens = self.tokens * DECAY + tokens
        self.seconds = self.seconds * DECAY + seconds
        self.weight = self.weight * DECAY + 1.0
        self.visits += 1
        self.last_visit = step

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else float("inf")


class AdaptiveBudget:
    """Chooses among a few sizes by measured tokens per second.

    Args:
        candidates: sizes to choose from, increasing, 1 first (plain decoding).
    """

    def __init__(self, candidates: Sequence[int] = CANDIDATES) -> None:
        if not candidates or candidates[0] != 1 or list(candidates) != sorted(set(candidates)):
            raise ValueError(f"candidates must be increasing and start with 1 (plain decoding), got {list(candidates)}")
        self.candidates = tuple(candidates)
        self.largest = self.candidates[-1]
        self._arms = {size: _Arm() for size in self.candidates}
        self._step = 0
        self._chosen = self.largest
        self._next_probe = 0

    def choose(self, lanes: int) -> list[int]:
        """The size with the best rate, or one whose turn it is to be probed."""
        self._chosen = self._pick()
        return [self._chosen] * lanes

    def _pick(self) -> int:
        # large sizes first: a first answer should not start with plain steps
        for size in reversed(self.candidates):
            if self._arms[size].visits < FIRST_VISITS:
                return size
        best = max(self.candidates, key=lambda size: self._arms[size].rate)
        if self._step < self._next_probe:
            return best
        self._next_probe = self._step + PROBE_EVERY
        stalest = min((s for s in self.candidates if s != best), key=lambda size: self._staleness(size, best))
        return stalest

    def _staleness(self, size: int, best: int) -> float:
        """Smaller is more urgent: long not visited, and not far behind."""
        arm = self._arms[size]
        return -(self._step - arm.last_visit) * (arm.rate / self._arms[best].rate) ** 4

    def learn(self, nodes: Sequence[int], emitted: Sequence[int], seconds: StepSeconds) -> None:
        """Books the step under the size that was chosen for it (a drafter may have used less of it)."""
        self._step += 1
        self._arms[self._chosen].add(sum(emitted) / len(emitted), seconds.total, self._step)
