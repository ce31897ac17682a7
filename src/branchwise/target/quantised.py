"""Matrices in fewer bits: 8 per number with one scale per row, or 4 with one scale per 32 numbers.

    8 bits   w = (q - zero) * scale      q 0..255, zero a whole number, one of each per row
    4 bits   w = (q - zero) * scale      q 0..15, zero any number, one of each per group of 32 along a row;
                                         scale and zero * scale are float16 numbers

Data-free: nothing but the weights is looked at. With four bits, the step is searched: a checkpoint that was made from a
GGUF file with 4-bit blocks of 32 lies on such a grid already, and its own values are found again (up to the rounding to
bfloat16). Knows tensors; knows no model and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS = ("f32", "bf16", "int8", "int4")
GROUP = 32
#: steps that 4 bits are tried with, as parts of a group's range: a grid whose ends do not occur has fewer steps in use
_STEPS = (15, 14, 13, 12, 11, 10)
#: most relative error (root mean square) at which the output matrix is kept in 4 bits
_HEAD_TOLERANCE = 0.01
_CHUNK_ROWS = 512


@dataclass(frozen=True, eq=False)
class Quantised:
    """One matrix of O rows and I columns.

    Attributes:
        values: uint8: ``[O, I]``, or in 4 bits ``[O, I / 2]``, the even column in the lower half of a byte.
        zero: float32 ``[O, G]``, with G groups per row.
        scale: float32 ``[O, G]``.
    """

    values: Tensor
    zero: Tensor
    scale: Tensor

    @property
    def bits(self) -> int:
        """Per number."""
        return 8 if self.scale.shape[1] == 1 else 4

    def dequantised(self) -> Tensor:
        """The numbers it stands for, float32 ``[O, I]``."""
        values = self.values
        if self.bits == 4:
            values = torch.stack((values & 15, values >> 4), dim=2).flatten(1)
        grouped = values.float().unflatten(1, (self.scale.shape[1], -1))  # [O, G, I / G]
        return ((grouped - self.zero[:, :, None]) * self.scale[:, :, None]).flatten(1)

    def relative_error(self, weight: Tensor) -> float:
        """Root mean square of what is lost, by that of the weight."""
        weight = weight.float()
        return float((self.dequantised() - weight).norm() / weight.norm().clamp_min(1e-30))


def quantise(weight: Tensor, weights: str, *, is_head: bool = False) -> Quantised:
    """A matrix ``[O, I]`` in the bits of a format.

    Args:
        weight: floating point.
        weights: "int8" or "int4". Rows that cannot be cut into groups of 32 take 8 bits in either.
        is_head: it makes the logits; four bits must then reproduce it all but exactly, or it takes 8.
    """
    # one group of 32 per row would look like 8 bits, and saves nothing
    if weights == "int4" and weight.shape[1] % GROUP == 0 and weight.shape[1] > GROUP:
        small = _by_chunks(weight, _four_bits)
        if not is_head or small.relative_error(weight) < _HEAD_TOLERANCE:
            return small
    return _by_chunks(weight, _eight_bits)


def _by_chunks(weight: Tensor, quantise_rows) -> Quantised:
    parts = [quantise_rows(rows.float()) for rows in weight.split(_CHUNK_ROWS)]
    return Quantised(*(torch.cat([getattr(part, name) for part in parts]) for name in ("values", "zero", "scale")))


def _eight_bits(weight: Tensor) -> Quantised:
    low = weight.amin(1, keepdim=True).clamp_max(0.0)
    high = weight.amax(1, keepdim=True).clamp_min(0.0)
    scale = _positive((high - low) / 255)
    zero = (-low / scale).round()
    values = ((weight / scale).round() + zero).clamp_(0, 255)
    return Quantised(values.to(torch.uint8), zero, scale)


def _four_bits(weight: Tensor) -> Quantised:
    grouped = weight.unflatten(1, (-1, GROUP))  # [O, G, 32]
    low, high = grouped.aminmax(dim=2, keepdim=True)
    best_error = torch.full_like(low, torch.inf)
    best_scale = torch.ones_like(low)
    for steps in _STEPS:
        scale = _positive((high - low) / steps)
        error = (((grouped - low) / scale).round() * scale + low - grouped).square().sum(2, keepdim=True)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
    # numbers of 16 bits, as GGUF files have them: an engine may keep them so
    low, scale = low.half().float(), _positive(best_scale.half().float())
    values = ((grouped - low) / scale).round().clamp_(0, 15).to(torch.uint8).flatten(1)
    packed = values[:, 0::2] | (values[:, 1::2] << 4)
    return Quantised(packed, (-low / scale).squeeze(2), scale.squeeze(2))


def _positive(scale: Tensor) -> Tensor:
    """A group of equal numbers has no range; any step will do."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def check_weights(weights: str) -> None:
    """Raises ValueError for formats that do not exist."""
    if weights not in FORMATS:
        raise ValueError(f"weights must be one of {', '.join(FORMATS)}, got {weights!r}")
