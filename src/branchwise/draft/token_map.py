"""Where the entries of a trimmed draft vocabulary lie in the target's. Knows two tensors of a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from .checkpoint import HeadCheckpoint
from .head_config import HeadCheckpointError


def read_token_ids(checkpoint: HeadCheckpoint, draft_vocab_size: int, vocab_size: int) -> Tensor:
    """Target ids int64 ``[draft_vocab_size]`` of a head's own vocabulary, from the offsets ``d2t``.

    Raises:
        HeadCheckpointError: the ids are not distinct ones of the target's; says which fault.
    """
    ids = torch.arange(draft_vocab_size) + checkpoint.take("d2t", (draft_vocab_size,), torch.int64)
    fault = None
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        fault = f"it leads to the tokens {int(ids.min())} .. {int(ids.max())} in a vocabulary of {vocab_size}"
    elif len(ids.unique()) < draft_vocab_size:
        fault = "it leads from two draft tokens to one target token"
    if fault is not None:
        raise HeadCheckpointError(
            f"tensor 'd2t' of {checkpoint.folder.name} does not give {draft_vocab_size} different tokens of the "
            f"target's {vocab_size}: {fault}"
        )
    return ids
