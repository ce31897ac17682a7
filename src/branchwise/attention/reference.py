"""Tree attention as a formula: softmax(scale * q k^T + mask) v, one obvious line after the other.

The definition that the other backends are compared with. It repeats keys and values to all heads and materialises all
scores, so it is for checking and for reading, not for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import TreeLayout


def reference_attention(
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
    """Softmax attention over committed slots and tree ancestors, in float32 or wider.

    Arguments are those of `Backend`.
    """
    batch, heads, width, _ = query.shape
    dtype = torch.promote_types(query.dtype, torch.float32)
    group = heads // key.shape[1]
    slots = key.shape[2] - width
    keys = key.to(dtype).repeat_interleave(group, dim=1)  # [B, K, S + N, D] -> [B, H, S + N, D]
    values = value.to(dtype).repeat_interleave(group, dim=1)  # [B, K, S + N, Dv] -> [B, H, S + N, Dv]

    scores = query.to(dtype) @ keys.transpose(2, 3) * scale  # [B, H, N, S + N]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = ~layout.mask(committed, slots, window)[:, None]  # [B, 1, N, S + N]
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        sink_scores = sinks.to(dtype)[None, :, None, None].expand(batch, heads, width, 1)
        scores = torch.cat((scores, sink_scores), dim=3)  # [B, H, N, S + N + 1]
    weights = torch.softmax(scores, dim=3)[..., : slots + width]  # [B, H, N, S + N]: a sink takes weight, gives nothing
    return layout.zero_padding((weights @ values).to(query.dtype))  # [B, H, N, Dv]
