"""How large the best static tree is on a machine: Sequoia's trees of every size, and what each of them costs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..tree import StaticShape
from ..tree.static_shape import rank_chances


@dataclass(frozen=True)
class StaticChoice:
    """A static tree and what it promises.

    Attributes:
        shape: where its branches are; its length is the budget.
        tokens_per_step: expected, the bonus token included.
        seconds: of one step.
        speedup: tokens per second as a multiple of plain decoding's.
    """

    shape: StaticShape
    tokens_per_step: float
    seconds: float
    speedup: float

    @property
    def budget(self) -> int:
        """Nodes, root included."""
        return len(self.shape)


def growing_shapes(acceptance: Sequence[float], largest: int) -> tuple[list[tuple[int, ...]], list[float]]:
    """The nodes of the best static tree of every size: the first n - 1 of them make the best one of n nodes.

    A node is worth the chance that its whole path is right. That falls along every path, so the likeliest nodes of all
    form a tree, and this is the optimum that `sequoia` finds without bounds on depth and width (Chen et al. 2024,
    section 3.1).

    Args:
        acceptance: for every rank, the probability that its candidate is right where those before it are not.
        largest: most nodes, root included.

    Returns:
        index paths in falling order of their chance, and the chances.
    """
    ranked = sorted(enumerate(rank_chances(acceptance)), key=lambda item: -item[1])
    ranked = [(rank, chance) for rank, chance in ranked if chance > 0.0]
    paths: list[tuple[int, ...]] = []
    chances: list[float] = []
    # (minus chance, path, place of its last rank in the order of ranks, chance of the parent)
    ahead: list[tuple[float, tuple[int, ...], int, float]] = []
    if ranked:
        ahead.append((-ranked[0][1], (ranked[0][0],), 0, 1.0))
    while ahead and len(paths) < largest - 1:
        negative, path, place, above = heapq.heappop(ahead)
        paths.append(path)
        chances.append(-negative)
        heapq.heappush(ahead, (negative * ranked[0][1], (*path, ranked[0][0]), 0, -negative))
        if place + 1 < len(ranked):
            rank, chance = ranked[place + 1]
            heapq.heappush(ahead, (-above * chance, (*path[:-1], rank), place + 1, above))
    return paths, chances


def best_static(acceptance: Sequence[float], seconds: Callable[[int], float], largest: int = 64) -> StaticChoice:
    """The static tree with most tokens per second, plain decoding (one node) among them.

    Args:
        acceptance: as for `growing_shapes`.
        seconds: of a forward of so many nodes.
        largest: most nodes, root included.

    Raises:
        ValueError: ``largest`` is below 1, or a probability is out of range.
    """
    if largest < 1:
        raise ValueError(f"a budget counts nodes, root included: it must be >= 1, got {largest}")
    paths, chances = growing_shapes(acceptance, largest)
    tokens, plain = 1.0, seconds(1)
    best = (1.0, 0, 1.0, plain)  # speedup, drafted nodes, tokens per step, seconds
    for drafted, chance in enumerate(chances, start=1):
        tokens += chance
        took = seconds(drafted + 1)
        best = max(best, (tokens * plain / took, drafted, tokens, took), key=lambda found: found[0])
    speedup, drafted, tokens, took = best
    return StaticChoice(StaticShape(paths[:drafted]), tokens, took, speedup)
