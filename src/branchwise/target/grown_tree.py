"""A tree that a drafter grows level by level, as a compiled decoder takes it: earlier nodes, and those to run now.

Knows tokens and depths; knows no lane and no cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..tree import TokenTree


@dataclass(frozen=True)
class GrownTree:
    """A tree whose first nodes have rows in flight already.

    Attributes:
        tree: all of it.
        known: so many first nodes were run before; 0 for a tree that begins.
    """

    tree: TokenTree
    known: int = 0

    def __len__(self) -> int:
        """Nodes to run now."""
        return len(self.tree) - self.known

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of the nodes to run now."""
        return self.tree.tokens[self.known :]

    @property
    def depth(self) -> tuple[int, ...]:
        """Likewise."""
        return self.tree.depth[self.known :]

    def check_continues(self, lane: int, before: TokenTree | None) -> None:
        """Raises unless the tree begins with the nodes of ``before``, which are in flight, and has more."""
        if before is None:
            raise ValueError(f"lane {lane} has no tree in flight that could grow; call forward first")
        if len(self.tree) <= self.known:
            raise ValueError(f"the tree of lane {lane} has not grown: it has {len(self.tree)} nodes, as before")
        if self.tree.tokens[: self.known] != before.tokens or self.tree.parents[: self.known] != before.parents:
            raise ValueError(f"the tree of lane {lane} does not begin with the nodes in flight")
