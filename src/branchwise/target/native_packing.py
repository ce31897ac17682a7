"""Matrices in the order in which the C in native_decoder/ reads them: strips of 32 outputs, steps of inputs.

    numbers [O, I]  ->  [strips, steps, 2 blocks, bytes of 32 inputs x 16 outputs]

Knows tensors; the layouts themselves are described in linear.h, broadcast.h and digits.h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..cache.large_pages import large_zeros
from .quantised import GROUP, Quantised

BLOCK = 16
"""Outputs of a block; two blocks make a strip."""
STEP = GROUP
"""Inputs of a step: a group of 4-bit numbers is one step."""
DIGIT_STEP = 64
"""Inputs of a step where bytes are multiplied as they are (digits.h)."""
_FLOATS, _HALVES, _BYTES, _NIBBLES, _DIGITS = range(5)
_FORMATS = {torch.float32: _FLOATS, torch.bfloat16: _HALVES}
_RECORD_BYTES = (2048, 1024, 512, 320, 1024)
_LINE = 64
"""Bytes of a line of the processor's cache."""


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

    def in_digits(self) -> Packed:
        """8-bit numbers that are multiplied as they are, see digits.h."""
        assert self.format == _BYTES, "only bytes are whole numbers of one scale per output"
        return replace(self, format=_DIGITS)

    @property
    def step(self) -> int:
        """Inputs of a step."""
        return DIGIT_STEP if self.format == _DIGITS else STEP

    @property
    def outputs(self) -> int:
        """Rows O."""
        return len(self.numbers)

    @property
    def packed_bytes(self) -> int:
        """Of what `pack` makes of it, stacked with others or not, at most."""
        outputs, inputs = self.numbers.shape
        blocks = -(-outputs // (2 * BLOCK)) * 2 + 2
        return blocks * -(-inputs // self.step) * _RECORD_BYTES[self.format]

    def padded(self, column: Tensor) -> Tensor:
        """A number per output, with zeros up to whole strips."""
        return pad(column, (0, -len(column) % (2 * BLOCK)))

    def per_output(self, name: str) -> Tensor | None:
        """Scales or zeros beside the values: only 8-bit numbers have them there."""
        return self.padded(getattr(self, name)[:, 0]) if self.format in (_BYTES, _DIGITS) else None


class Shelf:
    """Memory for all matrices of a model, one after another in the order of reading, in large pages where there are.

    Args:
        nbytes: room for so much at most; what is not used costs nothing.
    """

    def __init__(self, nbytes: int) -> None:
        self._room = large_zeros(nbytes, dtype=torch.uint8)
        self._used = 0

    def put(self, values: Tensor) -> Tensor:
        """The same bytes on the shelf."""
        place = self._room[self._used : self._used + values.numel()].view(values.shape)
        self._used += -(-values.numel() // _LINE) * _LINE
        return place.copy_(values)


def stack(parts: Sequence[Packed]) -> Packed:
    """Outputs of several matrices one after another, as one; of one format."""
    return _joined(parts, torch.cat)


def pair_up(gate: Packed, up: Packed) -> Packed:
    """Sixteen outputs of one, sixteen of the other, and so on: a strip has both."""

    def alternate(halves: Sequence[Tensor]) -> Tensor:
        blocks = [pad(half, (0, 0, 0, -len(half) % BLOCK)).unflatten(0, (-1, BLOCK)) for half in halves]
        return torch.stack(blocks, dim=1).flatten(0, 2)

    return _joined((gate, up), alternate)


def _joined(parts: Sequence[Packed], join: Callable[[list[Tensor]], Tensor]) -> Packed:
    """All parts must be of one format."""
    scales = [part.scale for part in parts if part.scale is not None]
    zeros = [part.zero for part in parts if part.zero is not None]
    numbers = join([part.numbers for part in parts])
    return Packed(parts[0].format, numbers, join(scales) if scales else None, join(zeros) if zeros else None)


def pack(matrix: Packed, *, broadcast: bool) -> Tensor:
    """uint8 ``[strips, steps, 2, bytes of a record]``.

    Args:
        matrix: the numbers.
        broadcast: the order of broadcast.h; else that of linear.h, or of digits.h.
    """
    outputs, inputs = matrix.numbers.shape
    numbers = pad(matrix.numbers, (0, -inputs % matrix.step, 0, -outputs % (2 * BLOCK)))
    blocks = numbers.unflatten(1, (-1, matrix.step)).unflatten(0, (-1, 2, BLOCK)).permute(0, 3, 1, 2, 4)
    if matrix.format in (_FLOATS, _HALVES, _DIGITS):
        return (blocks.transpose(3, 4) if broadcast else blocks).contiguous().flatten(3).view(torch.uint8)
    if matrix.format == _BYTES:
        return (_in_quads(blocks) if broadcast else _in_pairs(blocks)).flatten(3)
    if broadcast:
        two = _in_quads(blocks).unflatten(4, (-1, 2))  # [strips, steps, 2, 2, 4, 2, 8, 4]
        words = (two[..., 0, :, :] | (two[..., 1, :, :] << 4)).flatten(3)
    else:
        four = blocks.unflatten(3, (4, 2, 2))  # [strips, steps, 2, 4, 2, 2, 32]
        both = four[..., 0, :] | (four[..., 1, :] << 4)  # [strips, steps, 2, 4, 2, 32]
        words = both.transpose(4, 5).flatten(3)
    assert matrix.scale is not None and matrix.zero is not None
    beside = [_by_block(part).half().view(torch.uint8) for part in (matrix.scale, -matrix.scale * matrix.zero)]
    return torch.cat([words, *beside], dim=3)


def _in_pairs(blocks: Tensor) -> Tensor:
    """``[..., 16 outputs, 32 inputs]`` to ``[..., 8, 16, 2, 2]``: pairs of outputs, of inputs, and what is in them."""
    return blocks.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).transpose(4, 5)


def _in_quads(blocks: Tensor) -> Tensor:
    """``[..., 16 outputs, 32 inputs]`` to ``[..., 2, 8 quads, 8 outputs, 4 inputs]``."""
    return blocks.unflatten(4, (-1, 4)).unflatten(3, (2, -1)).transpose(4, 5)


def _by_block(part: Tensor) -> Tensor:
    """``[O, steps]`` to ``[strips, steps, 2, 16]``."""
    part = pad(part, (0, 0, 0, -len(part) % (2 * BLOCK)))
    return part.view(-1, 2, BLOCK, part.shape[1]).permute(0, 3, 1, 2).contiguous()
