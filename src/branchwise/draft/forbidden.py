"""What the processors of a request forbid whatever the model says: known before any forward.

Knows a lane's settings and tokens. A user's own processor is never called ahead of time. Drafters leave these tokens
out of a proposal *before* drawing; the law forbids them all the same, so nothing here can make an output wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .best_first import Path
from .protocol import DraftContext


def forbidden(context: DraftContext, path: Path) -> Tensor | None:
    """Bool ``[V]`` on the CPU, True for tokens that may not follow ``path``; None when no ban is known."""
    bans = context.sampler.bans if context.sampler is not None else ()
    if not bans:
        return None
    # where the target's own laws call them: some keep tensors from their first call
    device = context.place.target.device if context.place is not None else torch.device("cpu")
    ids = torch.tensor([[*context.tokens, *path]], device=device)  # [1, L]
    scores = torch.zeros(1, context.vocab_size, device=device)
    for processor in bans:
        scores = processor(ids, scores)
    banned = (scores[0] == -torch.inf).cpu()
    return banned if bool(banned.any()) else None
