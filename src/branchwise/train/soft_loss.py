"""The cross-entropy of a head's logits against a whole distribution, with its gradient made in the forward.

Rows are as wide as a vocabulary, so passes over memory are what costs: this makes three where log_softmax and a
product, differentiated, make eight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _SoftCrossEntropy(torch.autograd.Function):
    """``-sum(wanted * log_softmax(logits))`` per row; the gradient is ``softmax(logits) - wanted``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = wide.logsumexp(dim=-1)
        loss = total - (wanted * wide).sum(dim=-1)
        ctx.save_for_backward((wide - total[:, None]).exp_().sub_(wanted).to(logits.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return difference * gradients[0][:, None].to(difference.dtype), None


def weighted_loss(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Average over rows, by weight.

    Args:
        logits: ``[n, D]`` of the head.
        wanted: ``[n, D]`` probabilities; no gradient flows into them.
        weights: ``[n]``, all above 0; none at all gives 0.
    """
    losses: Tensor = _SoftCrossEntropy.apply(logits, wanted)
    return (weights * losses).sum() / weights.sum().clamp(min=1e-9)
