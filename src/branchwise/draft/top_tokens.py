"""The k largest logits of many rows over a large vocabulary, and what they sum to, cheaply. Knows tensors only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .top_native import native_top

#: entries that share one maximum in the first stage; at 32 to 128 both stages are cheap
BLOCK = 32
#: below this many entries per row one plain ``topk`` is as fast
SMALL_VOCABULARY = 4096
_FOUND = (torch.float32, torch.int64)


def likeliest_tokens(logits: Tensor, k: int, token_ids: Sequence[int] | None = None) -> list[list[tuple[int, float]]]:
    """Of every row the k tokens of largest probability and their log-probabilities, the likeliest first.

    Those are at most 0: rounding must not make a child likelier than its parent. They are NaN in a row with NaN or
    infinity, or of minus infinity only.

    Args:
        logits: ``[N, V]``.
        k: at most V.
        token_ids: the token of each of the V entries; None when they are the same.
    """
    logp, tokens = native_top(logits, k, as_log_probabilities=True) or _log_probabilities(logits, k)
    pairs = list(zip(tokens if token_ids is None else map(token_ids.__getitem__, tokens), logp, strict=True))
    return [pairs[at : at + k] for at in range(0, len(pairs), k)]


def _log_probabilities(logits: Tensor, k: int) -> tuple[Sequence[float], Sequence[int]]:
    """`native_top` in torch."""
    values, tokens = _in_stages(logits, k)
    values = values.to(torch.promote_types(logits.dtype, torch.float32))
    logp = (values - _log_totals(logits, values[:, :1])).clamp_(max=0.0)
    return logp.flatten().tolist(), tokens.flatten().tolist()


def _log_totals(logits: Tensor, largest: Tensor) -> Tensor:
    """Logarithms ``[N, 1]`` of the sums of the exponentials of ``[N, V]``, of whose rows ``largest`` is known."""
    # what is too small for the sum to notice is made no smaller: laws of sharp models would be full of denormal
    # numbers, which processors are slow with
    powers = (logits.to(largest.dtype) - largest).clamp_(min=-80.0).exp_()
    return powers.sum(dim=1, keepdim=True).log_().add_(largest)


def top_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the ``k`` largest entries of every row, largest first; exactly ``torch.topk`` up to ties.

    Args:
        logits: ``[N, V]``.
        k: at most V.

    Returns:
        ``[N, k]`` values and ``[N, k]`` indices.
    """
    found = native_top(logits, k, as_log_probabilities=False)
    if found is not None:
        values, tokens = (torch.frombuffer(part, dtype=dtype) for part, dtype in zip(found, _FOUND, strict=True))
        return values.to(logits.dtype).view(-1, k), tokens.view(-1, k)
    return _in_stages(logits, k)


def _in_stages(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`top_tokens` in torch.

    ``torch.topk`` sorts its way through the whole row: 0.25 ms a row at 49,152 entries, more than a draft may cost. Two
    stages read each row once instead. Block b holds the entries b, b + B, b + 2B, ..., so that the maxima of all blocks
    are one vectorised pass over contiguous rows. At least k entries are as large as the k-th largest block maximum, so
    no entry outside the k blocks of largest maxima is needed.
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
