"""How toy drafts are made: which children a node gets, and how many.

A *kind* draws the children of one node from the draft's law there; a *shape* says how many it may have. Both are plain
callables, so controls can bring broken ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..verify import ONE_HOT, Coins, Proposal, Sampled, draw_with_replacement, draw_without_replacement
from ..verify.vectors import lift
from .growing import Spot

Children = list[tuple[int, Proposal]]
#: (the draft's law at the node, how many children, coins) -> children in draw order
Kind = Callable[[Any, int, Coins], Children]


def top_tokens(law: Any, k: int) -> list[int]:
    """The ``k`` most probable tokens, the lowest id first among equals; also those of probability 0."""
    values = law.tolist() if isinstance(law, Tensor) else law.values
    return sorted(range(len(values)), key=lambda token: (-values[token], token))[:k]


def as_sampled(tokens: Sequence[int], law: Any, replacement: bool = False) -> Children:
    """Children that say they were sampled from ``law``."""
    proposal = Sampled(law, replacement)
    return [(token, proposal) for token in tokens]


def deterministic(law: Any, k: int, coins: Coins) -> Children:
    """Top-k, one-hot. What is picked without chance may have draft probability 0: a lookup proposes what it likes."""
    return [(token, ONE_HOT) for token in top_tokens(law, k)]


def without_replacement(law: Any, k: int, coins: Coins) -> Children:
    """Sampled, each without its earlier siblings."""
    return as_sampled(draw_without_replacement(law, k, coins), law)


def with_replacement(law: Any, k: int, coins: Coins) -> Children:
    """Sampled independently, duplicates kept as nodes of their own."""
    return as_sampled(draw_with_replacement(law, k, coins), law, replacement=True)


def with_replacement_merged(law: Any, k: int, coins: Coins) -> Children:
    """Sampled independently, later copies dropped.

    The same law as without replacement and a random number of children, so it is verified as without replacement.
    """
    return as_sampled(list(dict.fromkeys(draw_with_replacement(law, k, coins))), law)


def mixed(law: Any, k: int, coins: Coins) -> Children:
    """The best token first, one-hot; then sampled without replacement from the law without it."""
    first = top_tokens(law, 1)[0]
    rest, _ = lift(law).without(first)
    if k == 1 or rest.is_zero:
        return [(first, ONE_HOT)]
    return [(first, ONE_HOT), *without_replacement(rest.weights, k - 1, coins)]


KINDS: dict[str, Kind] = {
    "deterministic": deterministic,
    "without replacement": without_replacement,
    "with replacement": with_replacement,
    "mixed": mixed,
}


#: (node, draft probability of each token at the node's parent) -> number of children
Width = Callable[[Spot, Callable[[int], Any]], int]


@dataclass(frozen=True)
class Shape:
    """How many children a node may have.

    Attributes:
        name: as printed.
        height: most drafted tokens on a path.
        width: number of children of a node. It may look at what was drawn already, siblings included: whether to
            *expand* a node may depend on it, whether to *keep* a sampled child may not.
        rollouts: whether only the root can have several children, and all paths have one length.
    """

    name: str
    height: int
    width: Width
    rollouts: bool = False

    @property
    def is_chain(self) -> bool:
        """Whether no node can have two children."""
        return self.name.startswith("chain")


def kary(*branching: int) -> Shape:
    """Every node at depth d has up to ``branching[d]`` children."""
    name = f"chain {len(branching)}" if set(branching) == {1} else f"({','.join(map(str, branching))})"

    def width(spot: Spot, chance: Callable[[int], Any]) -> int:
        return branching[len(spot.prefix)] if len(spot.prefix) < len(branching) else 0

    return Shape(name, len(branching), width, rollouts=set(branching[1:]) <= {1})


def only_where(shape: Shape, name: str, expands: Callable[[Spot, Callable[[int], Any]], bool]) -> Shape:
    """``shape``, but a node below the root is expanded only where ``expands`` says so."""

    def width(spot: Spot, chance: Callable[[int], Any]) -> int:
        return shape.width(spot, chance) if not spot.prefix or expands(spot, chance) else 0

    return Shape(name, shape.height, width)


def only_best(spot: Spot, chance: Callable[[int], Any]) -> bool:
    """Whether the node has the highest draft probability among its siblings; the first drawn of equals."""
    chances = [chance(token) for token in spot.siblings]
    return chances.index(max(chances)) == spot.ranks[-1]


def only_worst(spot: Spot, chance: Callable[[int], Any]) -> bool:
    """Whether the node has the lowest draft probability among its siblings; the first drawn of equals."""
    chances = [chance(token) for token in spot.siblings]
    return chances.index(min(chances)) == spot.ranks[-1]


def _ragged(spot: Spot, chance: Callable[[int], Any]) -> int:
    #         root
    #        /    \
    #       a      b       the first child has two children, the second of which has one; the second child has none
    #      / \
    #     c   d
    #         |
    #         e
    return {(): 2, (0,): 2, (0, 1): 1}.get(spot.ranks, 0)


CHAIN, BINARY, COMB, DEEP = kary(1, 1, 1), kary(2, 2), kary(3, 1, 1), kary(2, 2, 1)
RAGGED = Shape("ragged", 3, _ragged)
EARLY_STOPPED = only_where(BINARY, "early-stopped", lambda spot, chance: bool(3 * chance(spot.prefix[-1]) >= 1))
SHAPES: tuple[Shape, ...] = (CHAIN, BINARY, COMB, DEEP, RAGGED, EARLY_STOPPED)
