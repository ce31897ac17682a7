"""Whether to draft at all, and at most how many nodes: what has brought most tokens per second, drafting included.

Drafters put their likeliest nodes first, so a step with a large ceiling also tells what a smaller one would have given:
the accepted nodes with numbers below it. What a ceiling is worth is therefore learned as a ratio to the next smaller
one over the same steps, where the luck of a step cancels out.

The best one is used. The others are probed as long as probes cost little of the time: where trees do not pay, plain
decoding takes over, and trees come back when a probe finds that they pay again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: share of the time that probes may cost
PROBE_SHARE = 0.01
#: steps from one probe to the next, at least
PROBE_EVERY = 12
#: weight of earlier comparisons at each new one, and for every step that passed without one
MEMORY, FADE = 0.98, 0.99
#: of two candidates that differ by less the smaller one is better: a larger tree takes more to grow and to choose from
AS_GOOD = 0.995
#: steps that one look at the rates serves, where the one before it said the same
LOOKED_AT_EVERY = 2
#: in the first steps: tokens per second, as a multiple of plain decoding's, below which larger ceilings are not tried
HOPELESS = 0.6
#: what is learned in the first steps, from drafts whose worth nobody knows yet, counts so much afterwards
BEGINNERS_WEIGHT = 0.25


@dataclass
class _Ceiling:
    """What is known about one candidate, over all steps that had at least this ceiling; sums are decayed.

    Attributes:
        tokens, nodes: what it gives, and how many nodes it has verified.
        tokens_below, nodes_below: the same of the next smaller candidate, in the same steps.
        weight: number of those steps.
        last_visit: number of the latest step for which it was chosen.
        last_comparison: number of the latest step in the sums.
    """

    tokens: float = 0.0
    nodes: float = 0.0
    tokens_below: float = 0.0
    nodes_below: float = 0.0
    weight: float = 0.0
    last_visit: int = 0
    last_comparison: int = 0

    def compare(self, step: int, here: tuple[float, float], below: tuple[float, float]) -> None:
        """Adds one step's tokens and nodes, of this candidate and of the next smaller one."""
        self.decay(MEMORY * FADE ** max(0, step - self.last_comparison - 1))
        self.last_comparison = step
        self.tokens += here[0]
        self.nodes += here[1]
        self.tokens_below += below[0]
        self.nodes_below += below[1]
        self.weight += 1.0

    def decay(self, share: float) -> None:
        """Only so much of what is known counts from now on."""
        self.tokens, self.nodes = share * self.tokens, share * self.nodes
        self.tokens_below, self.nodes_below = share * self.tokens_below, share * self.nodes_below
        self.weight *= share


class CeilingChoice:
    """Chooses among a few ceilings, one per step for all lanes.

    Args:
        candidates: nodes, root included; increasing, 1 first (no drafting, plain decoding).
        first: the ceilings of the first steps, in order; what they show is the beginning of all knowledge. Where a
            ceiling turns out to be much slower than plain decoding, those that would follow it are left out.
        cost: seconds of a step with a ceiling that has so many nodes verified, drafting included.
    """

    def __init__(self, candidates: Sequence[int], first: Sequence[int], cost: Callable[[int, float], float]) -> None:
        if not candidates or candidates[0] != 1 or list(candidates) != sorted(set(candidates)):
            raise ValueError(f"candidates must be increasing and start with 1 (plain decoding), got {list(candidates)}")
        self.candidates = tuple(candidates)
        self._known = {size: _Ceiling() for size in self.candidates}
        self._first = list(first)
        self._cost = cost
        #: whether the latest ceiling was one of the first
        self.is_beginning = bool(first)
        self._is_probe = False
        self._best = 1
        self._next_look = 0
        self._step = 0
        self._chosen = 1
        self._next_probe = 0
        self._allowance = 0.0  # seconds that probes may cost by now
        self._lanes = 1.0  # nodes of a step of lone roots

    def pick(self) -> int:
        """The ceiling of the next step."""
        if self._first and self._is_hopeless(self._chosen):
            self._first = []
        if self.is_beginning and not self._first:
            self.is_beginning = False
            for known in self._known.values():
                known.decay(BEGINNERS_WEIGHT)
        self._chosen = self._first.pop(0) if self._first else self._best_or_probe()
        return self._chosen

    def _is_hopeless(self, size: int) -> bool:
        return self._known[size].weight > 1.5 and self.rates()[size] < HOPELESS

    def _best_or_probe(self) -> int:
        self._is_probe = False
        may_probe = self._step >= self._next_probe
        if self._step < self._next_look and not may_probe:
            return self._best
        rates = self.rates()
        most = max(rates.values())
        best = next(size for size in self.candidates if rates[size] >= AS_GOOD * most)
        self._next_look = self._step + (LOOKED_AT_EVERY if best == self._best else 1)
        self._best = best
        if not may_probe:
            return best
        losses = {size: self._mean_cost(size) * (1.0 - rates[size] / rates[best]) for size in rates}
        self._allowance = min(self._allowance, max(losses.values()))
        affordable = [size for size in rates if size != best and losses[size] <= self._allowance]
        if not affordable:
            return best
        self._next_probe = self._step + PROBE_EVERY
        # long not visited, and not far behind
        probe = max(
            affordable,
            key=lambda size: (self._step - self._known[size].last_visit) * (rates[size] / rates[best]) ** 4,
        )
        self._allowance -= losses[probe]
        self._is_probe = probe > 1
        return probe

    def rates(self) -> dict[int, float]:
        """Tokens per second of every candidate, as a multiple of plain decoding's."""
        rates, rate = {1: 1.0}, 1.0
        for below, size in pairwise(self.candidates):
            known = self._known[size]
            if known.weight:
                cost = self._cost(size, known.nodes / known.weight) / self._cost(
                    below, known.nodes_below / known.weight
                )
                rate *= known.tokens / known.tokens_below / cost
            rates[size] = rate
        return rates

    def _mean_cost(self, size: int) -> float:
        known = self._known[size]
        return self._cost(size, known.nodes / known.weight if known.weight else self._lanes)

    def learn(self, tokens: Sequence[float], nodes: Sequence[float], promising: bool = False) -> None:
        """Books a step.

        Args:
            tokens: what every candidate up to the one chosen would have given in this step.
            nodes: how many nodes would have been verified with it.
            promising: a draft of this step was right. Where nothing is drafted, such a probe is repeated at once.
        """
        self._step += 1
        if promising and self._is_probe and self._best == 1:
            self._next_probe = self._step
        self._lanes = nodes[0]
        self._known[self._chosen].last_visit = self._step
        steps = list(zip(tokens, nodes, strict=True))
        for size, (below, here) in zip(self.candidates[1:], pairwise(steps), strict=False):
            self._known[size].compare(self._step, here, below)
        self._allowance += PROBE_SHARE * self._cost(self._chosen, nodes[-1])
