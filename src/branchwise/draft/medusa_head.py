"""Medusa's heads: small networks on the target's last hidden state, one for each of the next tokens.

Knows tensors and the published layout. Does not know trees or the target. Architecture and layout are those of Medusa
(Cai et al. 2024, section 2.1): head k is a few residual blocks and an output layer of its own, and guesses the token
k + 1 places after the one that the target's own output layer predicts from the same hidden state.
"""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.functional import silu


class ResidualBlock(nn.Module):
    """``x + silu(linear(x))``."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """``[..., h]`` to the same."""
        return inputs + silu(self.linear(inputs))


class MedusaHeads(nn.ModuleList):
    """All heads; parameters are named ``{head}.{block}.linear.weight``, ``.bias`` and ``{head}.{blocks}.weight``.

    Args:
        heads: how many tokens are guessed.
        blocks: residual blocks per head.
        hidden_size: h, of the target.
        vocab_size: V, of the target.
    """

    def __init__(self, heads: int, blocks: int, hidden_size: int, vocab_size: int) -> None:
        super().__init__(
            nn.Sequential(
                *(ResidualBlock(hidden_size) for _ in range(blocks)), nn.Linear(hidden_size, vocab_size, bias=False)
            )
            for _ in range(heads)
        )

    def forward(self, hidden: Tensor, heads: int | None = None) -> Tensor:
        """Logits ``[..., heads, V]`` of hidden states ``[..., h]``; only those of the first ``heads`` if given."""
        return torch.stack([head(hidden) for head in islice(self, heads)], dim=-2)
