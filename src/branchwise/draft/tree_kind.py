"""The ways in which a model's tree can be grown, by name, with their sizes.

Knows names and numbers. Does not grow anything itself.

    dynamic     the width likeliest nodes of a level are expanded, the best of all nodes seen make the tree (EAGLE-2)
    best_first  each forward expands the width likeliest nodes not yet expanded, at whatever depth
    static      a fixed shape of ranks, as Medusa's and Sequoia's trees
    chain       one token after the other, as most engines draft
    sampled     children drawn from the model's law without replacement, where and how many learned from acceptance
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .expand import Expansion, Forced
from .expand_best_first import BestFirstExpansion
from .expand_static import RankedShape, StaticExpansion

#: kind -> default depth, which is the most forwards (None: as many as the budget allows), and width
TREE_KINDS: dict[str, tuple[int | None, int]] = {
    "dynamic": (5, 4),
    "best_first": (8, 4),
    "static": (None, 1),
    "chain": (None, 1),
    "sampled": (6, 3),
}


@dataclass(frozen=True)
class TreeKind:
    """A kind with its sizes; `tree_kind` makes and checks one.

    Attributes:
        name: in `TREE_KINDS`.
        forwards: most forwards of the model per tree, or None for as many as the budget allows.
        width: see `SmallModelDrafter`.
        shape: of a static tree, else None.
    """

    name: str
    forwards: int | None
    width: int
    shape: RankedShape | None = None

    @property
    def samples(self) -> bool:
        """Whether children are drawn by chance."""
        return self.name == "sampled"

    @property
    def rows(self) -> int:
        """About how many rows a tree takes in the model's cache."""
        return len(self.shape) if self.shape is not None else (self.forwards or 16) * self.width

    def expansion(self, budget: int, limit: int | None, forced: Forced | None) -> Expansion | StaticExpansion:
        """A tree without draws, about to grow.

        Args:
            budget: most nodes, root included.
            limit: deepest node allowed, or None.
            forced: see `Expansion`; static trees do not follow it.
        """
        depth = budget - 1 if limit is None else min(budget - 1, limit)
        if self.shape is not None:
            return StaticExpansion(budget, self.shape, depth)
        grown = BestFirstExpansion if self.name == "best_first" else Expansion
        return grown(budget, self.width, depth, self.forwards, forced)


def tree_kind(
    name: str, *, depth: int | None = None, width: int | None = None, shape: Sequence[Sequence[int]] | None = None
) -> TreeKind:
    """The kind called ``name``.

    Raises:
        ValueError: no such kind, a size below 1, or an option that the kind does not have.
    """
    if name not in TREE_KINDS:
        raise ValueError(f"no kind of tree is called {name!r}; there are {', '.join(TREE_KINDS)}")
    for label, value in (("depth", depth), ("width", width)):
        if value is not None and value < 1:
            raise ValueError(f"a small-model drafter needs {label} >= 1, got {value}")
    if (name == "static") != (shape is not None):
        raise ValueError("tree='static' and shape=[index paths] go together; give both or neither")
    if shape is not None:
        if depth is not None or width is not None:
            raise ValueError("a static tree takes its depth and width from its shape; leave depth and width out")
        ranked = RankedShape.from_index_paths(shape)
        return TreeKind(name, ranked.height, ranked.width, ranked)
    if name == "chain" and width is not None:
        raise ValueError(f"a chain has width 1; leave width={width} out or take tree='dynamic'")
    default_depth, default_width = TREE_KINDS[name]
    return TreeKind(name, depth or default_depth, width or default_width)
