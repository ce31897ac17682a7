"""The k largest logits of many rows over a large vocabulary, cheaply. Knows tensors only."""

from __future__ import annotations

import torch
from torch import Tensor

#: entries that share one maximum in the first stage; at 32 to 128 both stages are cheap
BLOCK = 32
#: below this many entries per row one plain ``topk`` is as fast
SMALL_VOCABULARY = 4096


def top_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the ``k`` largest entries of every row, largest first; exactly ``torch.topk`` up to ties.

    ``torch.topk`` sorts its way through the whole row: 0.25 ms a row at 49,152 entries, more than a draft may cost. Two
    stages read each row once instead. Block b holds the entries b, b + B, b + 2B, ..., so that the maxima of all blocks
    are one vectorised pass over contiguous rows. At least k entries are as large as the k-th largest block maximum, so
    no entry outside the k blocks of largest maxima is needed.

    Args:
        logits: ``[N, V]``.
        k: at most V.

    Returns:
        ``[N, k]`` values and ``[N, k]`` indices.
    """
    rows, vocab_size = logits.shape
    blocks = vocab_size // BLOCK
    if vocab_size < SMALL_VOCABULARY or blocks < k:
        top = logits.topk(k, dim=-1)
        return top.values, top.indices
    even = blocks * BLOCK
    best = _best_blocks(logits[:, :even].view(rows, BLOCK, blocks), k)  # [N, k]
    offsets = torch.arange(0, even, blocks, device=logits.device)  # [BLOCK]
    chosen = (best[:, :, None] + offsets).view(rows, k * BLOCK)  # [N, k * BLOCK]
    if even < vocab_size:  # the last few entries belong to no block
        rest = torch.arange(even, vocab_size, device=logits.device).expand(rows, -1)
        chosen = torch.cat((chosen, rest), dim=1)
    top = logits.gather(1, chosen).topk(k, dim=-1)
    return top.values, chosen.gather(1, top.indices)


def _best_blocks(blocks: Tensor, k: int) -> Tensor:
    """The k blocks of largest maxima, ``[N, k]``, of logits ``[N, BLOCK, B]``.

    Half-precision numbers >= 0 are ordered as their bit patterns, and those below 0 have negative patterns. Integer
    maxima are three times as fast on a CPU, and right whenever the k-th largest is not negative.
    """
    if blocks.dtype in (torch.bfloat16, torch.float16) and blocks.device.type == "cpu":
        best = blocks.view(torch.int16).amax(dim=1).topk(k, dim=-1)  # [N, k]
        if int(best.values[:, -1].min()) >= 0:
            return best.indices
    return blocks.amax(dim=1).topk(k, dim=-1).indices
