"""What a drafter's trees are worth, as measured: the chance of every node to be accepted, the likeliest first.

The first n - 1 drafted nodes are the tree of a budget of n, so one order of nodes stands for all budgets:

    expected tokens(n) = 1 + gains of the first n - 1 drafted nodes

From chances by depth and rank the order is that of falling chances of whole paths, and no tree of n nodes has a higher
sum (a node's chance does not depend on which other nodes are drafted, and falls along its path). From tokens per step
at a few budgets the gains are the differences, made to fall.

Knows chances and counts; knows no tokens and no files (`acceptance_file` reads them).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class HostSeconds:
    """What a step costs outside the forward, per lane: work of the processor in this library.

    Attributes:
        draft: proposing the tree and learning from the verdict.
        other: laws, rule, commit and the loop.
    """

    draft: float
    other: float

    @property
    def total(self) -> float:
        """Both."""
        return self.draft + self.other


@dataclass(frozen=True)
class Acceptance:
    """A drafter's worth.

    Attributes:
        source: where it was measured, for the reader.
        parents: of every node, the root's -1; falling gains, parents first.
        gains: chance of every node to be accepted, the root's 1.
        host: seconds outside the forward by budget, rising budgets; empty where nobody measured them.
    """

    source: str
    parents: tuple[int, ...]
    gains: tuple[float, ...]
    host: Mapping[int, HostSeconds] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The largest budget that is known."""
        return len(self.gains)

    def expected_tokens(self, budget: int) -> float:
        """Tokens per step of trees of so many nodes, root included."""
        return sum(self.gains[:budget])

    def level_widths(self, budget: int) -> list[int]:
        """Nodes with children at every depth: rows of the forwards of a drafter that grows trees level by level."""
        depth = [0]
        for parent in self.parents[1:budget]:
            depth.append(depth[parent] + 1)
        widths = [0] * max(depth)
        for node in set(self.parents[1:budget]):
            widths[depth[node]] += 1
        return widths

    def host_seconds(self, budget: int) -> HostSeconds:
        """Per lane, straight lines between the budgets that were measured."""
        known = sorted(self.host)
        if not known:
            return HostSeconds(0.0, 0.0)
        if budget <= known[0]:
            return self.host[known[0]]
        for low, high in pairwise(known):
            if budget <= high:
                share = (budget - low) / (high - low)
                one, other = self.host[low], self.host[high]
                return HostSeconds(
                    one.draft + share * (other.draft - one.draft), one.other + share * (other.other - one.other)
                )
        return self.host[known[-1]]


def from_chances(source: str, depths: Sequence[Sequence[float]], largest: int) -> Acceptance:
    """From chances by depth and rank.

    Args:
        source: see `Acceptance`.
        depths: for every depth, for every rank, the chance that this child of an accepted node is accepted.
        largest: most nodes, root included.

    Raises:
        ValueError: a chance is out of range, or the children of a node are accepted more than once. Names the depth.
    """
    for number, chances in enumerate(depths, start=1):
        if any(not 0 <= chance <= 1 for chance in chances) or sum(chances) > 1 + 1e-9:
            raise ValueError(f"depth {number}: chances of one node's children are from 0 to 1 together, got {chances}")
    ranked = [sorted((chance for chance in chances if chance > 0), reverse=True) for chances in depths]
    parents, gains, depth = [-1], [1.0], [0]
    # (minus the chance of the path, number in order of entry, parent, rank); siblings enter one after the other
    waiting: list[tuple[float, int, int, int]] = []
    entered = 0

    def enter(parent: int, rank: int) -> None:
        nonlocal entered
        if depth[parent] < len(ranked) and rank < len(ranked[depth[parent]]):
            heapq.heappush(waiting, (-gains[parent] * ranked[depth[parent]][rank], entered, parent, rank))
            entered += 1

    enter(0, 0)
    while waiting and len(gains) < largest:
        chance, _, parent, rank = heapq.heappop(waiting)
        parents.append(parent)
        gains.append(-chance)
        depth.append(depth[parent] + 1)
        enter(parent, rank + 1)
        enter(len(gains) - 1, 0)
    return Acceptance(source, tuple(parents), tuple(gains))


def from_tokens_per_step(
    source: str, tokens: Mapping[int, float], host: Mapping[int, HostSeconds] | None = None
) -> Acceptance:
    """From tokens per step at some budgets, root included. A budget of 1 gives 1 and need not be told.

    Between two budgets tokens grow with the logarithm of the budget; where measured gains do not fall they are averaged
    until they do. Which node is whose child is not known: each hangs on the first node that has chance left for it.

    Raises:
        ValueError: nothing above 1 was measured, or tokens per step are below 1 or above the budget. Names the budget.
    """
    for budget, value in tokens.items():
        if budget < 1 or not 1 <= value <= budget:
            raise ValueError(f"a budget of {budget} cannot give {value} tokens per step: it gives from 1 to {budget}")
    points = sorted({1: 1.0, **tokens}.items())
    if len(points) < 2:
        raise ValueError("tokens per step are needed for at least one budget above 1")
    curve = [1.0]
    for (low, less), (high, more) in pairwise(points):
        for budget in range(low + 1, high + 1):
            between = less + (more - less) * math.log(budget / low) / math.log(high / low)
            curve.append(min(budget, between))  # no tree gives more tokens than it has nodes
    gains = [1.0, *_falling([later - earlier for earlier, later in pairwise(curve)])]
    return Acceptance(source, _hang(gains), tuple(gains), dict(host or {}))


def _falling(gains: Sequence[float]) -> list[float]:
    """The nearest numbers that never rise, with the same sum (pooling adjacent violators), from 0 to 1."""
    blocks: list[tuple[float, int]] = []  # sum, count
    for gain in gains:
        block = (gain, 1)
        while blocks and blocks[-1][0] / blocks[-1][1] < block[0] / block[1]:
            total, count = blocks.pop()
            block = (block[0] + total, block[1] + count)
        blocks.append(block)
    return [min(1.0, max(0.0, total / count)) for total, count in blocks for _ in range(count)]


def _hang(gains: Sequence[float]) -> tuple[int, ...]:
    """Parents, so that no node's children are accepted more often than it is."""
    parents = [-1]
    left = [gains[0]]
    for gain in gains[1:]:
        parent = next(node for node, chance in enumerate(left) if chance >= gain - 1e-12)
        parents.append(parent)
        left[parent] -= gain
        left.append(gain)
    return tuple(parents)
