"""Memory in large pages, where the system has them: who reads all of it often waits for fewer translations."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

_LARGE = 2 << 20
"""Bytes of a large page; less is not worth one."""


def large_zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """As `torch.zeros`, on the CPU. Pages that are never written cost nothing."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, nbytes)  # lives as long as the tensor
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
