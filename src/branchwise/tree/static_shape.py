"""A tree shape that stays the same at every step: which ranks of candidates are drafted below which node.

Integers only, except for the chances that a rank is right, which `StaticShape.expected_tokens` is told.

    paths  (0,) (1,) (0, 0) (0, 1) (1, 0)          root: its two best candidates;
                                                   below the best one its two best, below the second its best one
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from .shapes import index_path_shape

FORMAT = "branchwise-tree"
VERSION = 1


class StaticShape:
    """Index paths as in Medusa (Cai et al. 2024, section 2.1.2): ``(0, 2)`` is the third candidate below the first.

    Immutable. Nodes are numbered root first, then by depth and path.

    Args:
        paths: one per drafted node, in any order; every prefix of a path is in the list, too.

    Raises:
        ValueError: a path is empty, repeated, has a negative index, or its prefix is missing. Names the path.

    Attributes:
        paths: sorted by depth and path; node i + 1 has ``paths[i]``.
        parents: parent of every node, -1 for the root.
        ranks: for every node the index of the candidate it takes among its parent's; 0 for the root.
    """

    def __init__(self, paths: Iterable[Sequence[int]]) -> None:
        given = [tuple(path) for path in paths]
        self.parents, self.ranks = index_path_shape(given)
        self.paths = tuple(sorted(given, key=lambda path: (len(path), path)))

    @classmethod
    def kary(cls, branching: Sequence[int]) -> StaticShape:
        """Every node at depth d has its ``branching[d]`` best candidates below it; ``(1, 1, 1)`` is a chain.

        Raises:
            ValueError: a number is below 1.
        """
        for depth, width in enumerate(branching):
            if width < 1:
                raise ValueError(f"branching[{depth}] must be >= 1, got {width}")
        levels = (product(*map(range, branching[:depth])) for depth in range(1, len(branching) + 1))
        return cls(path for level in levels for path in level)

    def __len__(self) -> int:
        """Nodes, root included."""
        return len(self.parents)

    def __eq__(self, other: object) -> bool:
        return self.paths == other.paths if isinstance(other, StaticShape) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.paths)

    def __repr__(self) -> str:
        return f"StaticShape({list(self.paths)})"

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Nodes at every depth, the root's 1 first."""
        widths = [1] + [0] * self.height
        for path in self.paths:
            widths[len(path)] += 1
        return tuple(widths)

    @property
    def height(self) -> int:
        """Depth of the deepest node; 0 for a lone root."""
        return len(self.paths[-1]) if self.paths else 0

    @property
    def leaves(self) -> int:
        """Number of nodes without children."""
        return len(self) - len({parent for parent in self.parents if parent >= 0})

    def expected_tokens(self, acceptance: Sequence[float]) -> float:
        """Tokens per step if every rank is right as often as ``acceptance`` says, whatever the node.

        This positional acceptance is Sequoia's assumption (Chen et al. 2024, section 3.1). One token per step is the
        bonus token; every node adds the probability that its whole path is accepted.

        Args:
            acceptance: for every rank, the probability that its candidate is accepted where those before it are not.

        Raises:
            ValueError: a probability is out of range, or missing for a rank of this shape.
        """
        chances = rank_chances(acceptance)
        if max(self.ranks) >= len(chances) and self.paths:
            raise ValueError(f"the shape uses rank {max(self.ranks)}, acceptance is given for {len(chances)} ranks")
        reached = [1.0]
        for parent, rank in zip(self.parents[1:], self.ranks[1:], strict=True):
            reached.append(reached[parent] * chances[rank])
        return sum(reached)

    # files

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"format": FORMAT, "version": VERSION, "paths": [list(path) for path in self.paths]}

    @classmethod
    def from_dict(cls, record: Any) -> StaticShape:
        """Back from what `as_dict` made.

        Raises:
            ValueError: this is no such record, or its paths make no tree.
        """
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f'no tree shape: it needs "format": "{FORMAT}"')
        if record.get("version") != VERSION:
            raise ValueError(f"a tree shape of version {record.get('version')!r}, this program reads {VERSION}")
        if record.keys() != {"format", "version", "paths"}:
            raise ValueError(f"a tree shape has format, version and paths, got {', '.join(record)}")
        return cls(checked_paths(record["paths"]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the shape as one line of JSON."""
        Path(path).expanduser().write_text(json.dumps(self.as_dict()) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StaticShape:
        """Reads what `save` wrote.

        Raises:
            OSError: there is no such file.
            ValueError: the file holds no tree shape; says why, and how to import one of another program.
        """
        source = Path(path).expanduser()
        try:
            return cls.from_dict(json.loads(source.read_text(encoding="utf-8")))
        except ValueError as error:
            hint = "for trees of other programs: branchwise import-tree FILE --out JSON"
            raise ValueError(f"{source.name} cannot be read as a tree shape: {error} ({hint})") from None


def rank_chances(acceptance: Sequence[float]) -> tuple[float, ...]:
    """For every rank the probability that its candidate is the one that is accepted.

    Args:
        acceptance: the same, where the candidates of the ranks before it are not accepted.

    Raises:
        ValueError: a probability is below 0 or above 1; names the rank.
    """
    chances: list[float] = []
    left = 1.0
    for rank, given in enumerate(acceptance):
        if not 0.0 <= given <= 1.0:
            raise ValueError(f"acceptance[{rank}] must be a probability, got {given}")
        chances.append(left * given)
        left *= 1.0 - given
    return tuple(chances)


def checked_paths(value: Any) -> list[tuple[int, ...]]:
    """Index paths from a file.

    Raises:
        ValueError: it is no list of lists of whole numbers; names the first entry that is not.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"index paths are a list, got {type(value).__name__}")
    for number, path in enumerate(value):
        if not isinstance(path, list | tuple) or any(isinstance(i, bool) or not isinstance(i, int) for i in path):
            raise ValueError(f"index path {number} must be a list of whole numbers, got {path!r}")
    return [tuple(path) for path in value]
