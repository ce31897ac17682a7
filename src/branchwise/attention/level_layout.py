"""One level of growing trees: nodes of equal depth, each below a node of the level before.

A `GrownLayout` for drafters that need no token trees: it is made from the level before and the numbers of the parents
by a few tensor operations, whatever the width. The rows in flight, to attention, are

    column      0 ..... | S ........ | S + W1 ..... | S + W1 + W2 ......
    holds       slots   | level 1    | level 2      | this level (the queries)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .grown_layout import GrownLayout
from .layout import TreeLayout


class LevelLayout(GrownLayout):
    """The nodes of a level; they see their ancestors and themselves.

    Args:
        level: depth of these nodes counted from the first node in flight, 0 for the first level.
        nodes: nodes of every batch row; a row may have none.
        seen: bool ``[B, N, R]``, which of the R earlier rows in flight each node sees; False in padding.
        earlier_depth: ``[B, R]``, their levels.
    """

    def __init__(self, level: int, nodes: Sequence[int], seen: Tensor, earlier_depth: Tensor) -> None:
        batch, width, _ = seen.shape
        own = torch.eye(width, dtype=torch.bool, device=seen.device).expand(batch, -1, -1)  # [B, N, N]
        if min(nodes) < width:
            real = torch.arange(width, device=seen.device) < torch.tensor(nodes, device=seen.device)[:, None]  # [B, N]
            own, seen = own & real[:, None, :], seen & real[:, :, None]
        depth = torch.full((batch, width), level, device=seen.device)
        TreeLayout.__init__(self, tuple(nodes), depth, is_causal=False, ancestors=own)
        self._earlier, self._earlier_depth = seen, earlier_depth
        self._level = level

    @classmethod
    def first(cls, nodes: Sequence[int], device: torch.device | str | None = None) -> LevelLayout:
        """Nodes without ancestors in flight."""
        shape = (len(nodes), max(nodes), 0)
        seen = torch.zeros(shape, dtype=torch.bool, device=device)
        return cls(0, nodes, seen, torch.zeros(shape[0], 0, dtype=torch.int64, device=device))

    def next(self, nodes: Sequence[int], parents: Tensor) -> LevelLayout:
        """The level below.

        Args:
            nodes: nodes of every batch row.
            parents: int64 ``[B, max(nodes)]``, the parent of each node in this level; anything in padding.
        """
        seen = torch.cat((self._earlier, self.ancestors), dim=2)  # [B, N, R + N]
        below = seen.gather(1, parents[:, :, None].expand(-1, -1, seen.shape[2]))
        return LevelLayout(self._level + 1, nodes, below, torch.cat((self._earlier_depth, self.depth), dim=1))
