"""Rotary positions of a head.

Knows frequencies, from transformers' own formulas for every scaling that does not depend on the length. Knows no layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

if TYPE_CHECKING:
    from .eagle_config import EagleConfig


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


class HeadRotary:
    """Angles of a head's positions.

    No module: frequencies are no weights, they come from the config alone and stay in float32.
    """

    def __init__(self, config: EagleConfig) -> None:
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
        """How to turn ``positions`` ``[B, N]``; angles are float32 as in transformers, or float64 for float64."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        wide = torch.promote_types(dtype, torch.float32)
        angles = positions[:, None, :, None].to(wide) * self._frequencies.to(wide)  # [B, 1, N, D / 2]
        return Turn((angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype))
