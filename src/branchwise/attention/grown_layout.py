"""The newest nodes of trees whose earlier nodes are already in flight.

A drafter grows its tree level by level: each level is a forward over the new nodes only, whose keys and values join the
rows in flight. To attention the earlier nodes are slots that some queries may see:

    column      0 ..... | S ........ S + R - 1 | S + R ........... S + R + N - 1
    holds       slots   | earlier nodes        | new nodes (the queries)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..tree import TokenTree
from .layout import TreeLayout


class GrownLayout(TreeLayout):
    """A `TreeLayout` of the new nodes that also knows who of the earlier nodes is whose ancestor.

    Args:
        trees: the grown trees, one per batch row; their first nodes are those in flight.
        rows: per batch row, the row in flight of each earlier node (they differ from node numbers where an earlier
            forward was padded).
        rows_in_flight: rows R that all earlier forwards wrote, padding included.
        device: where the tensors go.
    """

    def __init__(
        self,
        trees: Sequence[TokenTree],
        rows: Sequence[Sequence[int]],
        rows_in_flight: int,
        device: torch.device | str | None = None,
    ) -> None:
        fresh = [len(tree) - len(known) for tree, known in zip(trees, rows, strict=True)]
        width = max(fresh)
        depth = torch.zeros(len(trees), width, dtype=torch.int64)
        own = torch.zeros(len(trees), width, width, dtype=torch.bool)
        earlier = torch.zeros(len(trees), width, rows_in_flight, dtype=torch.bool)
        earlier_depth = torch.zeros(len(trees), rows_in_flight, dtype=torch.int64)
        for b, (tree, known, new) in enumerate(zip(trees, rows, fresh, strict=True)):
            start = len(known)
            ancestors = tree.ancestors()[start:]
            at = torch.tensor(known)
            depth[b, :new] = torch.tensor(tree.depth[start:])
            own[b, :new, :new] = ancestors[:, start:]
            earlier[b, :new, at] = ancestors[:, :start]
            earlier_depth[b, at] = torch.tensor(tree.depth[:start])
        super().__init__(tuple(fresh), depth.to(device), is_causal=False, ancestors=own.to(device))
        self._earlier = earlier.to(device)
        self._earlier_depth = earlier_depth.to(device)

    def columns(self) -> tuple[Tensor, Tensor]:
        """Earlier nodes, then the new ones: ``[B, N, R + N]`` and ``[B, R + N]``."""
        visible, depth = super().columns()
        return torch.cat((self._earlier, visible), dim=2), torch.cat((self._earlier_depth, depth), dim=1)

    def needs_slot_mask(self, committed: tuple[int, ...], slots: int, window: int | None = None) -> bool:
        """Always: siblings of earlier levels must stay hidden."""
        return True

    def slot_block(self, committed: tuple[int, ...], slots: int, window: int | None = None) -> Tensor:
        """What the new nodes see of committed rows and of earlier nodes: bool ``[B, N, S + R]``."""
        visible, depth = self.columns()
        earlier = visible.shape[2] - self.width
        before, seen = slots - earlier, visible[:, :, :earlier]
        if window is not None:
            seen = seen & (self.depth[:, :, None] - depth[:, None, :earlier] < window)
        return torch.cat((super().slot_block(committed, before, window), seen), dim=2)
