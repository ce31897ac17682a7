"""Trees as a kernel reads them: one bit per pair of node and column, and where every column lies.

Knows no queries and no keys. The columns are those a mask of bits is needed for: the nodes of the tree and, while a
drafter grows it level by level, the earlier nodes before them. Committed slots need no bits: a count says it all.

For the tree ``parents = (-1, 0, 0, 1)`` one word per node, lowest bit first, holds what the node may see:

    node 0   1 . . .   word 0b0001
    node 1   1 1 . .   word 0b0011
    node 2   1 . 1 .   word 0b0101
    node 3   1 1 . 1   word 0b1011
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORD_BITS = 64


@dataclass(frozen=True, eq=False)
class PackedTrees:
    """The trees of a batch, ready for a kernel. B rows, N nodes, T columns (the last N of them are the nodes).

    Attributes:
        words: int64 ``[B, N, ceil(T / 64)]``; bit ``t % 64`` of word ``t // 64`` tells whether a node sees column t.
            None for chains, where a node sees every column up to its own.
        nodes: int32 ``[B]``, real nodes of every row.
        depth: int32 ``[B, N]``, of the nodes.
        column_depth: int32 ``[B, T]``, of the columns.
    """

    words: Tensor | None
    nodes: Tensor
    depth: Tensor
    column_depth: Tensor

    @property
    def columns(self) -> int:
        """Number of columns T."""
        return self.column_depth.shape[1]


def pack_visible(visible: Tensor) -> Tensor:
    """Bool ``[B, N, T]`` to int64 words ``[B, N, ceil(T / 64)]``."""
    batch, nodes, columns = visible.shape
    words = -(-columns // WORD_BITS)
    bits = torch.zeros(batch, nodes, words * WORD_BITS, dtype=torch.int64, device=visible.device)
    bits[:, :, :columns] = visible
    places = torch.arange(WORD_BITS, device=visible.device)
    # no two bits share a place, so the sum carries nothing; the 64th bit is the sign
    return (bits.view(batch, nodes, words, WORD_BITS) << places).sum(dim=3)
