"""Nodes of ragged trees side by side, without padding between them, and back.

A model's linear layers cost by the token, so trees of different sizes go through them packed into one row; attention
and the cache work lane by lane, so there they are spread out again. For three lanes with 2, 1 and 3 nodes:

    packed  a0 a1 b0 c0 c1 c2                     T = 6
    spread  a0 a1 a0 | b0 b0 b0 | c0 c1 c2        B = 3, N = 3; what stands in padding is any real node, hence finite

Knows counts and rows of tensors; knows no token and no attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


class Packing:
    """The two index tensors of one forward.

    Args:
        nodes: real nodes of every lane, each at least 1.
        device: where the tensors to be moved are.
    """

    def __init__(self, nodes: Sequence[int], device: torch.device | str | None = None) -> None:
        self.lanes, self.width = len(nodes), max(nodes)
        place: list[int] = []
        source: list[int] = []
        for lane, count in enumerate(nodes):
            first = len(place)
            place += range(lane * self.width, lane * self.width + count)
            source += [*range(first, first + count), *([first] * (self.width - count))]
        self.tokens = len(place)
        #: int32 ``[B]``, of every lane the row of its first node; on the CPU
        self.starts = torch.tensor([0, *accumulate(nodes[:-1])], dtype=torch.int32)
        self._place = torch.tensor(place, device=device)  # [T]
        self._source = torch.tensor(source, device=device)  # [B * N]

    def spread(self, packed: Tensor) -> Tensor:
        """``[1, X, T, D]`` to ``[B, X, N, D]``."""
        _, heads, _, dim = packed.shape
        # [T, X, D] is how projections lie in memory, so each node is one piece to copy
        rows = packed[0].transpose(0, 1).index_select(0, self._source)  # [B * N, X, D]
        return rows.view(self.lanes, self.width, heads, dim).transpose(1, 2)

    def gather(self, spread: Tensor) -> Tensor:
        """``[B, X, N, D]`` to ``[1, X, T, D]``."""
        rows = spread.transpose(1, 2).flatten(0, 1)  # [B * N, X, D]
        return rows.index_select(0, self._place).transpose(0, 1)[None]
