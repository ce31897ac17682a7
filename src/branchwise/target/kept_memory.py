"""Memory for what every forward gives anew, given again once nobody holds the tensor that lay in it.

Memory fresh from the system is not there before it is written: for the logits of a tree that is a thousand faults, a
twentieth of a forward. Knows bytes and references; knows no model.
"""

from __future__ import annotations

import mmap
import sys

import torch
from torch import Tensor

#: pieces that are kept: what the step before gave may still be held while the next one begins
_PIECES = 2


class KeptMemory:
    """A few pieces of memory for float32 tensors."""

    def __init__(self) -> None:
        self._pieces: list[mmap.mmap] = []
        self._unused = _references([mmap.mmap(-1, 1)])[0]  # what the question itself adds differs among Pythons

    def empty(self, rows: int, width: int) -> Tensor:
        """As `torch.empty`, on the CPU; float32 ``[rows, width]`` that shares memory with no tensor in use."""
        nbytes = 4 * rows * width
        if not nbytes:
            return torch.empty(rows, width)
        for piece, references in zip(self._pieces, _references(self._pieces), strict=True):
            if len(piece) >= nbytes and references <= self._unused:
                return _in(piece, rows, width)
        piece = mmap.mmap(-1, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            piece.madvise(mmap.MADV_HUGEPAGE)
        # the largest ones are worth most
        self._pieces = sorted([*self._pieces, piece], key=len)[-_PIECES:]
        return _in(piece, rows, width)


def _references(pieces: list[mmap.mmap]) -> list[int]:
    return [sys.getrefcount(piece) for piece in pieces]


def _in(piece: mmap.mmap, rows: int, width: int) -> Tensor:
    """The tensor keeps the piece: that is how it is known to be in use."""
    return torch.frombuffer(piece, dtype=torch.float32, count=rows * width).view(rows, width)
