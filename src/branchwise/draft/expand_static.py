"""Growing trees of a fixed shape: which candidates of which nodes are drafted is decided before any token is seen.

Knows ranks of candidates and a budget. Does not know what computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..tree.shapes import index_path_shape
from ..verify.proposal import DraftTree
from .best_first import Path
from .expand import ranked_tree


@dataclass(frozen=True)
class RankedShape:
    """A shape from index paths as Medusa writes them: ``(0, 2)`` is the third candidate below the first one.

    Attributes:
        children: per node the ranks of its children and their node numbers.
        height: its deepest node.
        width: candidates that have to be known below a node.
    """

    children: tuple[tuple[tuple[int, int], ...], ...]
    height: int
    width: int

    @classmethod
    def from_index_paths(cls, paths: Iterable[Sequence[int]]) -> RankedShape:
        """Raises ValueError for a malformed list (see `index_path_shape`) and for an empty one."""
        ordered = [tuple(path) for path in paths]
        if not ordered:
            raise ValueError("a static tree needs at least one index path, for example (0,)")
        parents, ranks = index_path_shape(ordered)
        children: list[list[tuple[int, int]]] = [[] for _ in parents]
        for node in range(1, len(parents)):
            children[parents[node]].append((ranks[node], node))
        return cls(tuple(map(tuple, children)), max(map(len, ordered)), max(ranks) + 1)

    def __len__(self) -> int:
        return len(self.children)


class StaticExpansion:
    """One lane's tree of a fixed shape, filled level by level.

    A budget below the size of the shape keeps the likeliest of its nodes.

    Args:
        budget: most nodes of the finished tree, root included.
        shape: the shape.
        max_depth: deepest node allowed.
    """

    def __init__(self, budget: int, shape: RankedShape, max_depth: int) -> None:
        self._budget = budget
        self._shape = shape
        self._max_depth = max_depth
        self._candidates: list[tuple[float, Path]] = []
        #: shape node of every frontier path
        self._nodes = [0]
        self.width = shape.width
        self.frontier: list[tuple[float, Path]] = [(0.0, ())] if max_depth > 0 and budget > 1 else []

    def take(self, children: Sequence[Sequence[tuple[int, float]]]) -> None:
        """As `Expansion.take`; a rank for which there is no candidate is left out, with all below it."""
        level: list[tuple[float, Path]] = []
        nodes: list[int] = []
        for (above, path), node, row in zip(self.frontier, self._nodes, children, strict=True):
            for rank, child in self._shape.children[node]:
                if rank < len(row):
                    token, logp = row[rank]
                    level.append((above + logp, (*path, token)))
                    nodes.append(child)
        self._candidates.extend(level)
        open_ones = [
            (one, node)
            for one, node in zip(level, nodes, strict=True)
            if self._shape.children[node] and len(one[1]) < self._max_depth
        ]
        self.frontier, self._nodes = [one for one, _ in open_ones], [node for _, node in open_ones]

    def tree(self, root: int, source: str) -> DraftTree:
        """The filled shape as a draft."""
        return ranked_tree(root, self._candidates, self._budget, source)
