"""Growing trees best-first under a budget, a few nodes per forward.

Knows log-probabilities of candidates and a budget. Does not know what computes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .best_first import Path
from .expand import Expansion


@dataclass
class BestFirstExpansion(Expansion):
    """Expands the ``width`` likeliest candidates that were not expanded yet, at whatever depth, forward by forward.

    A node outside the best ``budget - 1`` candidates cannot have a child inside (no path is likelier than its prefix),
    so it is never expanded; and once all of the best are expanded the tree is the one of `best_first.grow`: no other
    tree of that size, with at most so many candidates below each node, has a larger sum of path probabilities. Where
    the model is sure it is a deep and narrow tree, for few rows. With too few forwards for that it is what is known by
    then.
    """

    expanded: set[Path] = field(default_factory=set)

    def _next(self, level: list[tuple[float, Path]]) -> list[tuple[float, Path]]:
        self.expanded.update(path for _, path in self.frontier)
        self._keep_best()
        return [one for one in self.candidates if one[1] not in self.expanded and len(one[1]) < self.max_depth][
            : self.width
        ]

    def _followed(self, frontier: Iterable[tuple[float, Path]]) -> list[tuple[float, Path]]:
        known = len(self.candidates)
        followed = super()._followed(frontier)
        # who must be followed by one token has no other children
        self.expanded.update(path[:-1] for _, path in self.candidates[known:])
        return followed
