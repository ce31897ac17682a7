"""Budget "auto": the size that gives most tokens per second, learned while generating.

Drafters put their likeliest nodes first, so a step with a large tree also tells what a smaller budget would have given:
the accepted nodes with numbers below it. What a size is worth is therefore learned as a ratio to the next smaller one
over the same steps, where the luck of a step cancels out; what a tree costs, by the number of nodes it really had.

The best size is used. The others are probed now and then, and what was learned long ago counts little beside a probe:
plain decoding takes over where trees do not pay, and trees come back soon where they pay again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..decode.statistics import StepSeconds

CANDIDATES = (1, 5, 9, 17, 33)
#: visits of every candidate before any choice is made
FIRST_VISITS = 2
#: steps from one probe to the next
PROBE_EVERY = 24
#: weight of earlier comparisons at each new one, and for every step that passed without one
MEMORY, FADE = 0.97, 0.98
#: latest steps of about one size whose seconds are remembered; their median is not moved by a hiccup of the machine
SECONDS_KEPT = 8


@dataclass
class _Size:
    """What is known about one candidate.

    Attributes:
        seconds: of the latest steps whose largest tree had about this many nodes.
        tokens, cost: decayed sums over all steps whose budget reached this size: what this size gives and costs.
        tokens_below, cost_below: the same of the next smaller size, in the same steps.
        visits: steps for which this size was chosen.
        last_visit: number of the latest of them.
        last_comparison: number of the latest step in the sums.
    """

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SECONDS_KEPT))
    tokens: float = 0.0
    cost: float = 0.0
    tokens_below: float = 0.0
    cost_below: float = 0.0
    visits: int = 0
    last_visit: int = 0
    last_comparison: int = 0

    def compare(self, step: int, tokens: float, cost: float, tokens_below: float, cost_below: float) -> None:
        """Adds one step to the sums."""
        kept = MEMORY * FADE ** max(0, step - self.last_comparison - 1)
        self.last_comparison = step
        self.tokens = self.tokens * kept + tokens
        self.cost = self.cost * kept + cost
        self.tokens_below = self.tokens_below * kept + tokens_below
        self.cost_below = self.cost_below * kept + cost_below

    @property
    def gain(self) -> float:
        """Tokens per second, as a multiple of the next smaller size's."""
        if not self.tokens_below:
            return 1.0
        return (self.tokens / self.tokens_below) / (self.cost / self.cost_below)


class AdaptiveBudget:
    """Chooses among a few sizes by tokens per second.

    Args:
        candidates: sizes to choose from, increasing, 1 first (plain decoding).
    """

    def __init__(self, candidates: Sequence[int] = CANDIDATES) -> None:
        if not candidates or candidates[0] != 1 or list(candidates) != sorted(set(candidates)):
            raise ValueError(f"candidates must be increasing and start with 1 (plain decoding), got {list(candidates)}")
        self.candidates = tuple(candidates)
        self.largest = self.candidates[-1]
        self._sizes = {size: _Size() for size in self.candidates}
        self._step = 0
        self._chosen = 1
        self._next_probe = FIRST_VISITS * len(self.candidates) + PROBE_EVERY

    def choose(self, lanes: int) -> list[int]:
        """The size with the best rate, or one whose turn it is to be probed."""
        self._chosen = self._pick()
        return [self._chosen] * lanes

    def _pick(self) -> int:
        # small sizes first: a comparison needs to know what the smaller trees cost
        for size in self.candidates:
            if self._sizes[size].visits < FIRST_VISITS:
                return size
        rates = self._rates()
        best = max(rates, key=rates.__getitem__)
        if self._step < self._next_probe or len(rates) == 1:
            return best
        self._next_probe = self._step + PROBE_EVERY
        # long not visited, and not far behind
        return max(
            (size for size in rates if size != best),
            key=lambda size: (self._step - self._sizes[size].last_visit) * (rates[size] / rates[best]) ** 4,
        )

    def _rates(self) -> dict[int, float]:
        """Tokens per second and lane of every candidate."""
        rates, rate = {}, 1.0 / self._cost(1)
        for size in self.candidates:
            rate *= self._sizes[size].gain
            rates[size] = rate
        return rates

    def _cost(self, nodes: int) -> float:
        """Seconds of a step whose largest tree has so many nodes, between the sizes that were seen."""
        seen = [size for size in self.candidates if self._sizes[size].seconds]
        return float(np.interp(nodes, seen, [median_low(self._sizes[size].seconds) for size in seen]))

    def learn(self, nodes: Sequence[int], paths: Sequence[Sequence[int]], seconds: StepSeconds) -> None:
        """Books the step's seconds under its real size, and compares all sizes up to the budget it had."""
        self._step += 1
        chosen = self._sizes[self._chosen]
        chosen.visits += 1
        chosen.last_visit = self._step
        used = max(nodes)
        nearest = min(self.candidates, key=lambda size: abs(size - used))
        self._sizes[nearest].seconds.append(seconds.total)
        for below, size in pairwise(self.candidates):
            if size > self._chosen:
                break
            self._sizes[size].compare(
                self._step,
                _tokens_within(size, paths),
                self._cost(min(used, size)),
                _tokens_within(below, paths),
                self._cost(min(used, below)),
            )


def _tokens_within(budget: int, paths: Sequence[Sequence[int]]) -> int:
    """Tokens that a budget would have kept of these paths: one per node, the root's being the bonus token."""
    return sum(node < budget for path in paths for node in path)
