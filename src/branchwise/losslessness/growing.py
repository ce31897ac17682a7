"""Draft trees that grow where a rule looks.

The children of a node are drawn when somebody first asks for them. Because what is drawn below one node is independent
of what is drawn elsewhere, the verdict has the same law as if the whole tree had been drawn first, but branches that a
rule never visits need not be enumerated. A rule that looks at the tree as a whole (its length, its leaves, all tokens)
makes it grow to the end first.

Nodes are numbered in the order in which they are first seen, which is a topological order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..tree import TokenTree
from ..verify import DraftTree, OneHot, Proposal

ROOT_TOKEN = 0


@dataclass(frozen=True)
class Spot:
    """Where in a tree a node is.

    Attributes:
        prefix: tokens from below the root down to the node; empty at the root.
        ranks: the place in draw order of each of these nodes among its siblings.
        siblings: tokens of the node and its siblings in draw order; empty at the root.
    """

    prefix: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    siblings: tuple[int, ...] = ()


#: a node -> its children in draw order, each with how it was drawn
Expand = Callable[[Spot], Sequence[tuple[int, Proposal]]]


class _Column(Sequence[Any]):
    """One value per node. A known entry may be read at any time; reading anything else grows the tree to the end."""

    def __init__(self, grow: Callable[[], None]) -> None:
        self._grow = grow
        self.known: list[Any] = []

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int) or not 0 <= index < len(self.known):
            self._grow()
        return self.known[index]

    def __len__(self) -> int:
        self._grow()
        return len(self.known)

    def __iter__(self) -> Iterator[Any]:
        self._grow()
        return iter(tuple(self.known))


class GrowingTree:
    """Stands in for a `TokenTree`."""

    def __init__(self, expand: Expand) -> None:
        self._expand = expand
        self.tokens = _Column(self.grow)
        self.parents = _Column(self.grow)
        self.depth = _Column(self.grow)
        self.proposals = _Column(self.grow)  # entry i - 1 belongs to node i
        self._spots: list[Spot] = []
        self._children: dict[int, tuple[int, ...]] = {}
        self._append(ROOT_TOKEN, -1, Spot())

    def _append(self, token: int, parent: int, spot: Spot) -> int:
        self.tokens.known.append(token)
        self.parents.known.append(parent)
        self.depth.known.append(len(spot.prefix))
        self._spots.append(spot)
        return len(self._spots) - 1

    def children(self, node: int) -> tuple[int, ...]:
        """Children of ``node`` in draw order, drawn now if they are not yet."""
        if node not in self._children:
            spot = self._spots[node]
            drawn = self._expand(spot)
            siblings = tuple(token for token, _ in drawn)
            nodes = []
            for rank, (token, proposal) in enumerate(drawn):
                nodes.append(self._append(token, node, Spot((*spot.prefix, token), (*spot.ranks, rank), siblings)))
                self.proposals.known.append(proposal)
            self._children[node] = tuple(nodes)
        return self._children[node]

    def grow(self) -> None:
        """Draws everything that is not drawn yet."""
        node = 0
        while node < len(self._spots):
            self.children(node)
            node += 1

    def prefix(self, node: int) -> tuple[int, ...]:
        """Tokens below the root down to ``node``."""
        return self._spots[node].prefix

    def path(self, node: int) -> tuple[int, ...]:
        """As `TokenTree.path`."""
        nodes = [node]
        while nodes[-1]:
            nodes.append(self.parents.known[nodes[-1]])
        return tuple(reversed(nodes))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a `TokenTree` has is a question about the whole tree."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(TokenTree(self.tokens, self.parents), name)


class GrowingDraft:
    """Stands in for a `DraftTree`."""

    sources = ()
    scores = ()

    def __init__(self, expand: Expand) -> None:
        self.tree = GrowingTree(expand)
        self.proposals = self.tree.proposals

    def proposal(self, node: int) -> Proposal:
        """As `DraftTree.proposal`."""
        return cast(Proposal, self.proposals[node - 1])

    @property
    def is_deterministic(self) -> bool:
        """As `DraftTree.is_deterministic`."""
        return all(isinstance(proposal, OneHot) for proposal in self.proposals)


def growing_draft(expand: Expand) -> DraftTree:
    """A draft that calls ``expand`` for the children of each node that is looked at."""
    return cast(DraftTree, GrowingDraft(expand))
