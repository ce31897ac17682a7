"""What the processors of a request forbid whatever the model says: known before any forward.

Knows transformers' banning processors by exact type; a user's own processor is never called ahead of time. Drafters
leave these tokens out of a proposal *before* drawing; the law forbids them all the same, so nothing here can make an
output wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from .sampler import Sampler


def forbidden(sampler: Sampler | None, prefix: Sequence[int], vocab_size: int) -> Tensor | None:
    """Bool ``[V]``, True for tokens that may not follow ``prefix``; None when nothing is known to be forbidden.

    Args:
        sampler: the request's settings, or None.
        prefix: all tokens before, prompt included.
        vocab_size: V of the target.
    """
    if sampler is None:
        return None
    banning = [stage.processor for stage in sampler.stages if type(stage.processor) in _banning_types()]
    if not banning:
        return None
    ids = torch.tensor([list(prefix)], dtype=torch.long)
    scores = torch.zeros(1, vocab_size)
    for processor in banning:
        scores = processor(ids, scores)
    banned = scores[0] == -torch.inf
    return banned if bool(banned.any()) else None


@cache
def _banning_types() -> frozenset[type]:
    """transformers' processors that put minus infinity by the prefix alone."""
    from transformers.generation import logits_process as own

    names = (
        "SuppressTokensLogitsProcessor SuppressTokensAtBeginLogitsProcessor NoBadWordsLogitsProcessor "
        "SequenceBiasLogitsProcessor MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor "
        "NoRepeatNGramLogitsProcessor ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor"
    )
    return frozenset(getattr(own, name) for name in names.split() if hasattr(own, name))
