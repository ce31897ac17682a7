"""The cross-entropy of a head's logits against the target's whole distribution, with its gradient made in the forward.

Rows are as wide as a vocabulary, so passes over memory are what costs: a few rows at a time go from logits to gradient
while they are in the processor's cache, and nothing as wide is written but the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: numbers of a row-by-vocabulary block that stay in the cache of a core or two while they are worked on
_BLOCK_NUMBERS = 1 << 19


class _SoftCrossEntropy(torch.autograd.Function):
    """Sum of ``-share * sum(softmax(asked) * log_softmax(said))`` over rows.

    The gradient of a row is ``share * (softmax(said) - softmax(asked))``.
    """

    @staticmethod
    def forward(ctx: Any, said: Tensor, asked: Tensor, shares: Tensor) -> Tensor:
        wide = torch.promote_types(said.dtype, torch.float32)
        gradient = torch.empty_like(said)
        loss = torch.zeros((), dtype=wide, device=said.device)
        rows = max(1, _BLOCK_NUMBERS // max(1, said.shape[1]))
        for i in range(0, len(said), rows):
            block = said[i : i + rows].to(wide, copy=True)
            wanted = asked[i : i + rows].to(wide).softmax(dim=-1)
            share = shares[i : i + rows, None].to(wide)
            total = block.logsumexp(dim=-1, keepdim=True)
            log_law = block.sub_(total)
            loss -= (torch.linalg.vecdot(wanted, log_law)[:, None] * share).sum()
            gradient[i : i + rows] = log_law.exp_().sub_(wanted).mul_(share)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0].to(gradient.dtype), None, None


def weighted_loss(said: Tensor, asked: Tensor, weights: Tensor) -> Tensor:
    """Average over rows, by weight.

    Args:
        said: logits ``[n, D]`` of the head.
        asked: logits ``[n, D]`` of the target; no gradient flows into them.
        weights: ``[n]``, all above 0; none at all gives 0.
    """
    loss: Tensor = _SoftCrossEntropy.apply(said, asked, weights / weights.sum().clamp(min=1e-9))
    return loss
