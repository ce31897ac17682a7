"""Tree attention in blocks of keys with a running softmax, for everything that the fused kernel of torch cannot do.

Soft-capped scores, attention sinks and values of another width than the keys end up here. Half-precision inputs are
widened block by block, so scores, softmax and sums are float32 and no copy of the whole key or value is ever made.

The running softmax keeps, per query, the largest score so far, the sum of ``exp(score - largest)`` and the weighted
values (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", section 3). A sink is simply where a
row starts: largest = sink, sum = 1, values = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import TreeLayout

_SCORES_PER_BLOCK = 2**21
"""Scores alive at a time (8 MiB in float32), as long as a block keeps at least `_MIN_BLOCK` keys."""
_MIN_BLOCK = 256
_MAX_BLOCK = 4096


def blocked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    committed: tuple[int, ...],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax attention over committed slots and tree ancestors, in float32 or wider, keys in blocks.

    Arguments are those of `Backend`.
    """
    batch, heads, width, dim = query.shape
    kv_heads, rows, value_dim = key.shape[1], key.shape[2], value.shape[3]
    group = heads // kv_heads
    slots = rows - width
    dtype = torch.promote_types(query.dtype, torch.float32)
    block = min(max(_SCORES_PER_BLOCK // (batch * heads * width), _MIN_BLOCK), _MAX_BLOCK)

    folded = query.to(dtype).mul(scale).reshape(batch, kv_heads, group * width, dim)  # [B, K, G * N, D]
    # the lowest finite number instead of -inf: rows that have seen nothing yet must not compute -inf - -inf
    largest = folded.new_full((batch, kv_heads, group * width, 1), torch.finfo(dtype).min)
    total = torch.zeros_like(largest)
    if sinks is not None:
        start = sinks.to(dtype).view(1, kv_heads, group, 1).expand(batch, -1, -1, width)  # [H] -> [B, K, G, N]
        largest = start.reshape(batch, kv_heads, group * width, 1)  # [B, K, G * N, 1]
        total = torch.ones_like(largest)
    mixed = folded.new_zeros(batch, kv_heads, group * width, value_dim)  # [B, K, G * N, Dv]

    first_masked = 0 if layout.needs_slot_mask(committed, slots, window) else slots
    visible = layout.mask(committed, slots, window)  # [B, N, S + N]
    for begin in range(0, rows, block):
        end = min(begin + block, rows)
        scores = folded @ key[:, :, begin:end].to(dtype).transpose(2, 3)  # [B, K, G * N, block]
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        if end > first_masked:
            hidden = ~visible[:, None, None, :, begin:end]  # [B, 1, 1, N, block]
            scores.view(batch, kv_heads, group, width, end - begin).masked_fill_(hidden, -torch.inf)
        new_largest = torch.maximum(largest, scores.amax(dim=3, keepdim=True))
        weights = scores.sub_(new_largest).exp_()
        shrink = (largest - new_largest).exp_()
        total = total * shrink + weights.sum(dim=3, keepdim=True)
        mixed = mixed * shrink + weights @ value[:, :, begin:end].to(dtype)
        largest = new_largest
    output = (mixed / total).view(batch, heads, width, value_dim).to(query.dtype)  # [B, H, N, Dv]
    return layout.zero_padding(output)  # a row that saw nothing is padding: 0 / 0 ends here
