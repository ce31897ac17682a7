"""One level of growing trees: nodes of equal depth, each below a node of the level before.

A `GrownLayout` for drafters that need no token trees: it is made from the level before and the numbers of the parents.
Who sees whom is kept as strings of bytes, one per node, so that a level costs a few bytes and one tensor. The rows in
flight, to attention, are

    column      0 ..... | S ........ | S + W1 ..... | S + W1 + W2 ......
    holds       slots   | level 1    | level 2      | this level (the queries)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from .grown_layout import GrownLayout
from .layout import TreeLayout


class LevelLayout(GrownLayout):
    """The nodes of a level; they see their ancestors and themselves.

    Args:
        nodes: nodes of every batch row; a row may have none.
        seen: ``[B][N]``, of each node a byte per earlier row in flight, 1 where it sees it; anything in padding.
        widths: nodes N of every earlier level, padding included.
        device: where the tensors go.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        seen: Sequence[Sequence[bytes]],
        widths: tuple[int, ...],
        device: torch.device | str | None = None,
    ) -> None:
        width, level = max(nodes), len(widths)
        depth = torch.full((len(nodes), width), level, device=device)
        TreeLayout.__init__(self, tuple(nodes), depth, is_causal=False, ancestors=None, height=level)
        nothing = bytes(sum(widths) + width)
        #: per node a byte for every row in flight, those of this level included
        self._rows = [
            [
                earlier + bytes(node) + b"\1" + bytes(width - node - 1) if node < count else nothing
                for node, earlier in enumerate(row)
            ]
            for row, count in zip(seen, nodes, strict=True)
        ]
        self._widths = widths

    @classmethod
    def first(cls, nodes: Sequence[int], device: torch.device | str | None = None) -> LevelLayout:
        """Nodes without ancestors in flight."""
        return cls(nodes, [[b""] * max(nodes)] * len(nodes), (), device)

    def next(self, nodes: Sequence[int], parents: Sequence[Sequence[int]]) -> LevelLayout:
        """The level below.

        Args:
            nodes: nodes of every batch row.
            parents: ``[B][max(nodes)]``, the parent of each node in this level; that of padding is any of its nodes.
        """
        seen = [[rows[parent] for parent in row] for rows, row in zip(self._rows, parents, strict=True)]
        return LevelLayout(nodes, seen, (*self._widths, self.width), self.depth.device)

    @cached_property
    def _visible(self) -> Tensor:
        """Bool ``[B, N, R + N]``: what each node sees of the R earlier rows in flight and of its own level."""
        table = bytearray(b"".join(map(b"".join, self._rows)))
        return torch.frombuffer(table, dtype=torch.bool).view(self.batch, self.width, -1).to(self.depth.device)

    @cached_property
    def ancestors(self) -> Tensor:
        """As in any `TreeLayout`: bool ``[B, N, N]``, here each node sees itself alone."""
        return self._visible[:, :, -self.width :]

    def columns(self) -> tuple[Tensor, Tensor]:
        """Earlier nodes, then the new ones: ``[B, N, R + N]`` and ``[B, R + N]``."""
        widths = (*self._widths, self.width)
        levels = [level for level, width in enumerate(widths) for _ in range(width)]
        return self._visible, torch.tensor(levels, device=self.depth.device).expand(self.batch, -1)
