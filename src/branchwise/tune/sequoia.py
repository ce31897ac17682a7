"""The best tree of a given size that stays the same at every step. Knows chances of ranks, no tokens and no times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..tree import StaticShape
from ..tree.static_shape import rank_chances

if TYPE_CHECKING:
    from ..draft.protocol import StepRecord

Numbers = NDArray[Any]


def acceptance_by_rank(records: Sequence[StepRecord]) -> tuple[float, ...]:
    """How often the candidate of each rank was accepted where those before it were not.

    Only nodes that were accepted count, since only there the target's choice is known. A node whose children end before
    rank k says nothing about rank k, so nodes with many and with few children can be taken together (this is the
    estimator of Kaplan and Meier 1958).

    Args:
        records: steps of one or many generations (`Generation.records`), children drafted in order of rank.

    Returns:
        one probability per rank, up to the largest rank of an accepted node's child; what `sequoia` and
        `StaticShape.expected_tokens` take.

    Raises:
        ValueError: no accepted node had children.
    """
    tried: list[int] = []
    accepted: list[int] = []
    for record in records:
        tree, path = record.draft.tree, record.verdict.path
        for node, kept in zip(path, (*path[1:], None), strict=True):
            for rank, child in enumerate(tree.children(node)):
                if rank == len(tried):
                    tried.append(0)
                    accepted.append(0)
                tried[rank] += 1
                if child == kept:
                    accepted[rank] += 1
                    break
    if not tried:
        raise ValueError("nothing was drafted below an accepted node: record steps with a budget above 1")
    return tuple(hits / trials for hits, trials in zip(accepted, tried, strict=True))


def sequoia(
    acceptance: Sequence[float], budget: int, max_depth: int | None = None, max_children: int | None = None
) -> StaticShape:
    """The shape with the most expected tokens per step, exactly.

    The dynamic programme of Sequoia (Chen et al. 2024, section 3.1), with "at most" for "exactly" in every bound. The
    chance that a rank's candidate is accepted does not depend on which other ranks are drafted, so a node's children
    are its likeliest ranks, and with these in falling order

        tree(d, n)        = 1 + forest(d, 0, n - 1)                      best subtree of n nodes, at most d deep
        forest(d, k, m)   = max over s <= m of  chance_k tree(d - 1, s) + forest(d, k + 1, m - s),  or 0

    Of equally good shapes it takes a smallest one.

    Args:
        acceptance: for every rank, the probability that its candidate is accepted where those before it are not.
        budget: most nodes, root included.
        max_depth: most tokens below the root; None for no limit.
        max_children: most children per node; None for as many as ``acceptance`` has ranks.

    Raises:
        ValueError: a bound is too small, or a probability out of range.
    """
    for name, bound, least in (("budget", budget, 1), ("max_depth", max_depth, 0), ("max_children", max_children, 0)):
        if bound is not None and bound < least:
            raise ValueError(f"{name} must be >= {least}, got {bound}")
    chances = rank_chances(acceptance)
    ranks = sorted((rank for rank, chance in enumerate(chances) if chance > 0.0), key=lambda rank: -chances[rank])
    ranks = ranks[:max_children]
    tree = np.ones(budget + 1)  # by number of nodes; entry 0 is not used
    levels: list[Numbers] = []  # [ranks, budget] sizes of the children's subtrees, by nodes left
    for _ in range(budget - 1 if max_depth is None else min(max_depth, budget - 1)):
        deeper, sizes = _one_level_more(tree, [chances[rank] for rank in ranks])
        if np.array_equal(deeper, tree):
            break
        tree = deeper
        levels.append(sizes)
    return StaticShape(_paths(levels, ranks, (), budget))


def _one_level_more(tree: Numbers, chances: Sequence[float]) -> tuple[Numbers, Numbers]:
    """From best subtrees at most d deep to those at most d + 1 deep.

    Args:
        tree: ``[budget + 1]`` expected tokens by nodes.
        chances: falling.

    Returns:
        ``[budget + 1]`` and, by rank and nodes left for it and those after it, the nodes its subtree gets.
    """
    budget = len(tree) - 1
    forest = np.zeros(budget)  # by nodes, of the ranks after this one
    sizes = np.zeros((len(chances), budget), np.int64)
    for rank in reversed(range(len(chances))):
        with_rank = np.zeros(budget)
        for nodes in range(1, budget):
            gains = chances[rank] * tree[1 : nodes + 1] + forest[nodes - 1 :: -1]  # by size of the subtree, from 1
            best = int(gains.argmax())
            with_rank[nodes] = gains[best]
            sizes[rank, nodes] = best + 1
        forest = with_rank
    return np.concatenate(([1.0], 1.0 + forest)), sizes


def _paths(
    levels: Sequence[Numbers], ranks: Sequence[int], above: tuple[int, ...], nodes: int
) -> list[tuple[int, ...]]:
    """Index paths of the best subtree of at most ``nodes`` nodes below ``above``, without its own."""
    paths: list[tuple[int, ...]] = []
    left = nodes - 1
    if not levels:
        return paths
    for number, rank in enumerate(ranks):
        size = int(levels[-1][number, left])
        if size == 0:
            break
        path = (*above, rank)
        paths.append(path)
        paths += _paths(levels[:-1], ranks, path, size)
        left -= size
    return paths
