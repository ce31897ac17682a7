"""Rotary positions of a head.

Knows frequencies, from transformers' own formulas for every scaling that does not depend on the length. Knows no layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from .head_config import HeadCheckpointError, HeadConfig

#: rotary scalings whose frequencies do not depend on the length
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_ROPE_KEYS = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "rope_theta",
    "rope_type",
    "truncate",
}


class RotarySizes(Protocol):
    """What the frequencies depend on: sizes of the head, and rotary parameters as transformers names them."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def rope(self) -> Mapping[str, Any]: ...


class Turn:
    """Turns queries and keys ``[B, heads, N, D]`` by the angles of their positions.

    Args:
        cos: ``[B, 1, N, D / 2]``.
        sin: the same shape.
    """

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._cos, self._sin = cos, sin

    def __call__(self, states: Tensor) -> Tensor:
        first, second = states.chunk(2, dim=-1)  # number i is turned together with number i + D / 2
        turned = (first * self._cos - second * self._sin, second * self._cos + first * self._sin)
        return torch.cat(turned, dim=-1)

    def at(self, rows: Tensor) -> Turn:
        """How to turn those of the positions, ``[R]`` of N, alone."""
        return Turn(self._cos[:, :, rows], self._sin[:, :, rows])


class HeadRotary:
    """Angles of a head's positions.

    No module: frequencies are no weights, they come from the config alone and stay in float32.
    """

    def __init__(self, config: RotarySizes) -> None:
        with torch.device("cpu"):  # also where modules are being built on the meta device
            table = LlamaRotaryEmbedding(
                LlamaConfig(
                    hidden_size=config.hidden_size,
                    num_attention_heads=config.heads,
                    head_dim=config.head_dim,
                    max_position_embeddings=config.max_positions,
                    rope_parameters=dict(config.rope),
                )
            )
        self._frequencies = table.inv_freq.clone()  # [D / 2]
        self._scale = float(table.attention_scaling)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> Turn:
        """How to turn ``positions`` ``[B, N]``."""
        return Turn(*(table[:, None] for table in self.tables(positions, dtype)))

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[..., D / 2]`` of positions, with angles in float32 as in transformers, or in float64."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        wide = torch.promote_types(dtype, torch.float32)
        angles = positions[..., None].to(wide) * self._frequencies.to(wide)  # [..., D / 2]
        return (angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype)


def read_rope(config: HeadConfig) -> dict[str, Any]:
    """Rotary parameters, from the keys of today (``rope_parameters``) or of old (``rope_theta``, ``rope_scaling``).

    Raises:
        HeadCheckpointError: the frequencies depend on the length, or a parameter is not honoured.
    """
    theta = float(config.take("rope_theta", float, 10000.0))
    old = config.take("rope_scaling", dict, {})
    given = {key: value for key, value in config.take("rope_parameters", dict, old).items() if value is not None}
    if "type" in given:
        kind = given.pop("type")
        given.setdefault("rope_type", kind)
    rope = {"rope_type": "default", "rope_theta": theta} | given
    if rope["rope_type"] not in ROPE_TYPES:
        raise HeadCheckpointError(
            f"{config.where} has rotary scaling {rope['rope_type']!r}; there are {', '.join(ROPE_TYPES)}"
        )
    unknown = sorted(rope.keys() - _ROPE_KEYS)
    if unknown:
        raise HeadCheckpointError(f"{config.where} has rotary parameters {unknown}, which are not honoured")
    return rope
