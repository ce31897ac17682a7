"""Tree attention through torch's fused kernel, with the query heads of one key/value head folded into the query axis.

``[B, H, N, D] x [B, K, S + N, D]`` becomes ``[B, K, G * N, D] x [B, K, S + N, D]``: keys and values are read once
instead of G times and never repeated or copied. The mask is a bias shared by all layers of a forward.

The kernel is used for every shape: it was 2 to 8 times faster in bfloat16; in float32 it won for small trees, and from
16 nodes on plain matmuls were up to a quarter faster, not worth a second path. Best milliseconds per layer, one thread
of a busy Xeon with AVX-512 and AMX, torch 2.13, S = 6000 committed tokens (`bench/attention_crossover.py`):

                     bfloat16, H 9, K 3, D 64     float32, H 9, K 3, D 64      bfloat16, H 16, K 4, D 128
    N                  1     4    16    64          1     4    16    64          1     4    16    64
    this backend     0.5   0.7   1.6   3.9        0.6   1.0   2.8   9.5        1.3   1.5   3.8  11.3
    matmul-softmax   1.7   1.9   3.4  25.3        0.8   1.1   2.6   9.4        9.0   6.6   8.1  50.7
    keys repeated    1.5   6.6   5.2  10.6        4.5   6.0  12.0  14.1       14.0  16.3  28.6  47.9

Without any bias the kernel is some 10 % faster still, but merging an unmasked call over the slots with a masked one
over the tree by their log-sum-exp was not.

Prompts are the exception: from some hundred nodes on there is work enough per key, so folding gains nothing and would
cost G copies of a large bias. Each of the G query heads goes alone, and a prompt into an empty cache uses the kernel's
own causal mode without any bias.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .blocked import blocked_attention
from .layout import TreeLayout

PROMPT_NODES = 512
"""From this many nodes on, query heads go one by one instead of folded. Measured at 512: mostly within a tenth of each
other; at 256 folding was still up to a quarter ahead."""


def folded_attention(
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
    """Softmax attention over committed slots and tree ancestors, each key and value read once.

    Arguments are those of `Backend`. Sums are float32 for half-precision inputs.
    """
    batch, heads, width, dim = query.shape
    kv_heads, value_dim = key.shape[1], value.shape[3]
    slots = key.shape[2] - width
    if softcap is not None or sinks is not None or value_dim != dim:
        return blocked_attention(
            query, key, value, layout, committed, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
    group = heads // kv_heads
    if width >= PROMPT_NODES:
        output = _head_by_head(query, key, value, layout, committed, slots, scale, window)
    else:
        bias = layout.additive_mask(committed, slots, window, query.dtype, repeats=group)
        folded = query.reshape(batch, kv_heads, group * width, dim)  # [B, H, N, D] -> [B, K, G * N, D]
        mixed = scaled_dot_product_attention(folded, key, value, attn_mask=bias, scale=scale)  # [B, K, G * N, Dv]
        output = mixed.reshape(batch, heads, width, value_dim)  # [B, H, N, Dv]
    return layout.zero_padding(output)


def _head_by_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    committed: tuple[int, ...],
    slots: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """One call per query head of a group, all key/value heads at once: ``[B, H, N, Dv]``."""
    batch, heads, width, _ = query.shape
    kv_heads, value_dim = key.shape[1], value.shape[3]
    plain_causal = layout.is_causal and slots == 0 and (window is None or layout.height < window)
    bias = None if plain_causal else layout.additive_mask(committed, slots, window, query.dtype)
    grouped = query.view(batch, kv_heads, heads // kv_heads, width, -1)  # [B, H, N, D] -> [B, K, G, N, D]
    output = query.new_empty(batch, kv_heads, heads // kv_heads, width, value_dim)  # [B, K, G, N, Dv]
    for member in range(heads // kv_heads):
        output[:, :, member] = scaled_dot_product_attention(
            grouped[:, :, member], key, value, attn_mask=bias, is_causal=plain_causal, scale=scale
        )
    return output.view(batch, heads, width, value_dim)


def how(query: Tensor, plain: bool) -> str:
    """The way that `folded_attention` takes, for `registry.explain`."""
    if not plain:
        return "soft-capping, sinks and values of another width go in blocks of keys through plain products"
    if query.shape[2] >= PROMPT_NODES:
        return f"{query.shape[2]} nodes are a prompt: torch's fused kernel, head by head"
    return "torch's fused kernel, the query heads of a key/value head folded"
