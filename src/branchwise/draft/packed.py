"""Matrices of a head in 8 bits per number, for heads that are kept small on disk.

    NAME          int8 [rows, columns], 0 in the middle
    NAME.scale    float32 [rows]                          the matrix is NAME * scale, row by row

Knows tensors by name. A checkpoint with such pairs is read like any other (`HeadCheckpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

#: of the tensor beside a packed matrix
SCALE = ".scale"
#: the largest whole number used; -128 has no counterpart
LARGEST = 127


def pack_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A floating-point matrix ``[rows, columns]`` as int8 of the same shape and the scale ``[rows]`` of each row."""
    wide = matrix.detach().float()
    largest = wide.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))
    return (wide / scale[:, None]).round().clamp_(-LARGEST, LARGEST).to(torch.int8), scale


def unpack_rows(values: Tensor, scale: Tensor) -> Tensor:
    """The matrix that int8 ``[rows, columns]`` with a scale ``[rows]`` stands for, float32."""
    return values.float() * scale.float()[:, None]


def packed_names(names: Mapping[str, object]) -> frozenset[str]:
    """Those of the names whose matrix is packed: a scale lies beside it."""
    return frozenset(name for name in names if f"{name}{SCALE}" in names)
