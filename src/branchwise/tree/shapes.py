"""Tree shapes without tokens: where the branches are, before anybody says which tokens fill them.

A shape is a tuple of parents, as in `TokenTree.parents`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def chain_shape(length: int) -> tuple[int, ...]:
    """A root and ``length`` nodes below it in one line."""
    if length < 0:
        raise ValueError(f"a chain needs a length >= 0, got {length}")
    return tuple(range(-1, length))


def kary_shape(branching: Sequence[int]) -> tuple[int, ...]:
    """Every node at depth d has ``branching[d]`` children; ``(2, 2)`` has 1 + 2 + 4 nodes, breadth-first."""
    parents = [-1]
    level = [0]
    for depth, width in enumerate(branching):
        if width < 1:
            raise ValueError(f"branching[{depth}] must be >= 1, got {width}")
        next_level = []
        for parent in level:
            for _ in range(width):
                next_level.append(len(parents))
                parents.append(parent)
        level = next_level
    return tuple(parents)


def index_path_shape(paths: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape from Medusa-style index paths: ``(0, 2)`` is the third candidate below the first one.

    The format is the ``medusa_choices`` list of Medusa (Cai et al. 2024, section 2.1.2).

    Returns:
        parents: as in `TokenTree.parents`, root first, sorted by depth and then by path.
        ranks: for every node the index of the candidate it takes among its parent's; 0 for the root.

    Raises:
        ValueError: a path is empty, repeated, has a negative index, or its prefix is missing. Names the path.
    """
    ordered = sorted(map(tuple, paths), key=lambda path: (len(path), path))
    node_of: dict[tuple[int, ...], int] = {(): 0}
    parents, ranks = [-1], [0]
    for path in ordered:
        if not path:
            raise ValueError("an index path must not be empty: the root is implied")
        if min(path) < 0:
            raise ValueError(f"index path {path} has a negative index")
        if path in node_of:
            raise ValueError(f"index path {path} appears twice")
        if path[:-1] not in node_of:
            raise ValueError(f"index path {path} has no parent: {path[:-1]} is missing from the list")
        node_of[path] = len(parents)
        parents.append(node_of[path[:-1]])
        ranks.append(path[-1])
    return tuple(parents), tuple(ranks)
