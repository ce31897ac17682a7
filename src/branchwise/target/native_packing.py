"""Matrices in the order in which native_decoder/linear.h reads them: strips of 32 outputs, steps of 32 inputs.

    numbers [O, I]  ->  [strips, steps, 2 blocks, bytes of 32 inputs x 16 outputs]

Knows tensors; the layout itself is described in linear.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from .quantised import GROUP, Quantised

BLOCK = 16
"""Outputs of a block; two blocks make a strip."""
STEP = GROUP
"""Inputs of a step: a group of 4-bit numbers is one step."""
_FLOATS, _HALVES, _BYTES, _NIBBLES = range(4)
_FORMATS = {torch.float32: _FLOATS, torch.bfloat16: _HALVES}


@dataclass(frozen=True, eq=False)
class Packed:
    """A matrix, one number per entry, on its way into the order of reading.

    Attributes:
        format: as linear.h numbers them.
        numbers: ``[O, I]``: floats, or what is to be shifted and scaled.
        scale: float32 ``[O, G]``, or None.
        zero: likewise.
    """

    format: int
    numbers: Tensor
    scale: Tensor | None = None
    zero: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor | Quantised) -> Packed:
        """A matrix in float32 or bfloat16, or a quantised one."""
        if isinstance(weight, Tensor):
            return cls(_FORMATS[weight.dtype], weight)
        if weight.bits == 8:
            return cls(_BYTES, weight.values, weight.scale, weight.zero)
        numbers = torch.stack((weight.values & 15, weight.values >> 4), dim=2).flatten(1)
        return cls(_NIBBLES, numbers, weight.scale, weight.zero)

    @property
    def outputs(self) -> int:
        """Rows O."""
        return len(self.numbers)

    def padded(self, column: Tensor) -> Tensor:
        """A number per output, with zeros up to whole strips."""
        return pad(column, (0, -len(column) % (2 * BLOCK)))

    def per_output(self, name: str) -> Tensor | None:
        """Scales or zeros beside the values: only 8-bit numbers have them there."""
        return self.padded(getattr(self, name)[:, 0]) if self.format == _BYTES else None


def stack(parts: Sequence[Packed]) -> Packed:
    """Outputs of several matrices one after another, as one; of one format."""
    return _joined(parts, torch.cat)


def pair_up(gate: Packed, up: Packed) -> Packed:
    """Sixteen outputs of one, sixteen of the other, and so on: a strip has both."""

    def alternate(halves: Sequence[Tensor]) -> Tensor:
        blocks = [pad(half, (0, 0, 0, -len(half) % BLOCK)).unflatten(0, (-1, BLOCK)) for half in halves]
        return torch.stack(blocks, dim=1).flatten(0, 2)

    return _joined((gate, up), alternate)


def _joined(parts: Sequence[Packed], join) -> Packed:
    """All parts must be of one format."""
    names = ("numbers", "scale", "zero")
    columns = ([getattr(part, name) for part in parts] for name in names)
    return Packed(parts[0].format, *(None if column[0] is None else join(column) for column in columns))


def pack(matrix: Packed) -> Tensor:
    """uint8 ``[strips, steps, 2, bytes of a record]``."""
    outputs, inputs = matrix.numbers.shape
    numbers = pad(matrix.numbers, (0, -inputs % STEP, 0, -outputs % (2 * BLOCK)))
    # [strips, 2, 16 outputs, steps, 16 pairs, 2] -> [strips, steps, 2, 16 pairs, 16 outputs, 2]
    tiles = numbers.view(-1, 2, BLOCK, numbers.shape[1] // STEP, STEP // 2, 2).permute(0, 3, 1, 4, 2, 5).contiguous()
    if matrix.format != _NIBBLES:
        return tiles.flatten(3).view(torch.uint8)
    rows = tiles.flatten(4)  # [strips, steps, 2, 16, 32]
    halves = (rows[..., :16] | (rows[..., 16:] << 4)).flatten(3)
    assert matrix.scale is not None and matrix.zero is not None
    beside = [_by_block(part).half().view(torch.uint8) for part in (matrix.scale, -matrix.scale * matrix.zero)]
    return torch.cat([halves, *beside], dim=3)


def _by_block(part: Tensor) -> Tensor:
    """``[O, steps]`` to ``[strips, steps, 2, 16]``."""
    part = pad(part, (0, 0, 0, -len(part) % (2 * BLOCK)))
    return part.view(-1, 2, BLOCK, part.shape[1]).permute(0, 3, 1, 2).contiguous()
