r"""Where samples go: how many children are drawn at which node, decided before anything is drawn.

Knows a deterministic tree with its estimates and how often first, second, ... draws were accepted. Knows no law and
draws nothing, so nothing here can depend on what is drawn: every planned child is drawn, and none is dropped.

             0 "the"              the children of node 0 in order: 1 and 2 were picked without chance (estimates 0.5
          /  |    \   \          and 0.2), then two draws (s); of the cases in which neither 1 nor 2 is accepted, 0.3
    1 "cat" 2 "dog" s   s         in all, the first draw is accepted in 0.6, so it is worth 0.18
       |            |
    3 "sat"         s
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..verify.proposal import DraftTree

#: how often the first, the second, ... draw is accepted before anything is learned: small models differ, but never
#: much from this (the first draw's figure is the overlap of the two laws)
PRIOR = (0.6, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01)
#: observations that the prior counts for, and after how many all counts are halved
STRENGTH, MEMORY = 8.0, 512.0


class DrawRecord:
    """How often the r-th draw at a node turned out to be the accepted child, of the nodes it was drawn at."""

    def __init__(self) -> None:
        self._hits = [share * STRENGTH for share in PRIOR]
        self._trials = [STRENGTH] * len(PRIOR)

    def shares(self, width: int) -> list[float]:
        """Estimates for ``width`` draws, never rising."""
        shares: list[float] = []
        for rank in range(min(width, len(PRIOR))):
            shares.append(min(self._hits[rank] / self._trials[rank], *shares[-1:], 1.0))
        return shares

    def learn(self, drawn: int, accepted: int | None) -> None:
        """One node at which no deterministic child was accepted.

        Args:
            drawn: how many children were drawn.
            accepted: which of them (from 0) was accepted, if one was.
        """
        for rank in range(min(drawn, len(PRIOR))):
            self._hits[rank] += rank == accepted
            self._trials[rank] += 1.0
            if self._trials[rank] > MEMORY:
                self._hits[rank] *= 0.5
                self._trials[rank] *= 0.5


@dataclass
class Slot:
    """One node of a plan.

    Attributes:
        parent: number of the parent slot, -1 for the root.
        depth: of the node.
        value: estimated probability that the node will be accepted.
        token: of a deterministic node, None where the token is still to be drawn.
        source: who proposed the token; empty for draws.
        fixed: node of the deterministic tree, None below draws.
        draws: how many children are to be drawn here.
        round: of draws: how many forwards of the model come before; 0 for deterministic nodes.
    """

    parent: int
    depth: int
    value: float
    token: int | None
    source: str = ""
    fixed: int | None = None
    draws: int = 0
    round: int = 0


def plan_draws(
    fixed: DraftTree, shares: Sequence[float], budget: int, max_depth: int | None, rounds: int, reach: int | None = None
) -> list[Slot]:
    """The slots of a tree of at most ``budget`` nodes, the most valuable first; deterministic siblings before draws.

    A deterministic child is kept as long as its estimate is no lower than the value of the first draw that could take
    its place; behind the last kept one come the draws, which share what the kept ones leave. As no node is worth more
    than its parent or its earlier siblings, taking the best open slot first is optimal for these estimates.

    Args:
        fixed: the deterministic tree; a lone root for none.
        shares: of draws in turn, never rising, as `DrawRecord.shares` gives them.
        budget: most nodes, root included.
        max_depth: deepest node allowed, or None.
        rounds: most forwards of the model. Laws at deterministic nodes all come from the first one.
        reach: deepest draw that the model's positions allow, or None.
    """
    limits = [limit for limit in (max_depth, reach) if limit is not None]
    deepest_draw = min(limits) if limits else budget
    slots = [Slot(-1, 0, 1.0, fixed.tree.tokens[0], fixed=0)]
    waiting: list[tuple[float, int, Slot, Iterator[Slot]]] = []
    age = 0

    def offer(siblings: Iterator[Slot]) -> None:
        nonlocal age
        sibling = next(siblings, None)
        if sibling is not None:
            age += 1
            heapq.heappush(waiting, (-sibling.value, age, sibling, siblings))

    def offer_children(number: int) -> None:
        slot = slots[number]
        if max_depth is None or slot.depth < max_depth:
            may_draw = slot.depth < deepest_draw and slot.round < rounds
            offer(_children(slots, number, fixed, shares if may_draw else ()))

    offer_children(0)
    while waiting and len(slots) < budget:
        _, _, slot, siblings = heapq.heappop(waiting)
        if slot.token is None:
            slots[slot.parent].draws += 1
        slots.append(slot)
        offer(siblings)
        offer_children(len(slots) - 1)
    return slots


def _children(slots: list[Slot], number: int, fixed: DraftTree, shares: Sequence[float]) -> Iterator[Slot]:
    """What may hang below a slot, in the order in which it may."""
    above = slots[number]
    left = 1.0  # probability that none of the deterministic children so far is accepted
    for node in _best_children(fixed, above.fixed):
        share = _share(fixed, node)
        if shares and share < left * shares[0]:
            break
        yield Slot(
            number,
            above.depth + 1,
            above.value * share,
            fixed.tree.tokens[node],
            fixed.sources[node - 1] if fixed.sources else "",
            node,
        )
        left = max(0.0, left - share)
    for share in shares:
        if not left * share > 0.0:
            break
        yield Slot(number, above.depth + 1, above.value * left * share, None, round=above.round + 1)


def _best_children(fixed: DraftTree, node: int | None) -> list[int]:
    if node is None:
        return []
    return sorted(fixed.tree.children(node), key=lambda child: -_share(fixed, child))


def _share(fixed: DraftTree, node: int) -> float:
    """Estimate of a deterministic node given its parent."""
    parent = fixed.tree.parents[node]
    above = fixed.scores[parent - 1] if parent else 1.0
    return min(1.0, fixed.scores[node - 1] / above) if above > 0.0 else 0.0
