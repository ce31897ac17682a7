"""Loading a block head from its folder. Knows names of tensors and what must agree; does not know how a head drafts."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from .block_config import BlockHeadConfig, read_block_config
from .block_head import BlockHead
from .checkpoint import HeadCheckpoint, blank
from .head_config import HeadCheckpointError
from .head_target import RecordedTarget
from .token_map import read_token_ids

#: copies of the target's own weights that training keeps beside the head
TARGET_COPIES = ("verifier_norm.weight", "verifier_lm_head.weight")


@dataclass(frozen=True, eq=False)
class LoadedBlockHead:
    """A head, and the target's token id of each entry of its output layer (None when they are the same)."""

    head: BlockHead
    token_ids: tuple[int, ...] | None


def load_block_head(
    folder: str | os.PathLike[str], model: PreTrainedModel, *, allow_pickle: bool = False
) -> LoadedBlockHead:
    """The head in ``folder``, in the dtype and on the device of ``model``, its target.

    The layouts of DFlash, JetSpec and speculators are told apart by the config. The target's embeddings and output
    layer serve the head unless the checkpoint brings its own, as those with a smaller vocabulary do.

    Raises:
        HeadCheckpointError: the folder does not hold such a head, something in it is not honoured or not used, or the
            head was trained for another target.
    """
    checkpoint = HeadCheckpoint(folder, allow_pickle=allow_pickle)
    config = read_block_config(
        checkpoint.config, own_embedding="embed_tokens.weight" in checkpoint, own_head="lm_head.weight" in checkpoint
    )
    _check_target(config, model, checkpoint.folder.name)
    head = blank(lambda: BlockHead(config), model.dtype, model.get_input_embeddings().weight.device)
    checkpoint.fill(head)
    token_ids = _token_ids(checkpoint, config)
    for name in TARGET_COPIES:
        if name in checkpoint:
            checkpoint.skip(name)
    checkpoint.finish()
    return LoadedBlockHead(head.eval().requires_grad_(False), token_ids)


def _check_target(config: BlockHeadConfig, model: PreTrainedModel, where: str) -> None:
    recorded = RecordedTarget(config.hidden_size, config.vocab_size, config.target_layers, config.target_name)
    recorded.check(model, where)
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    if max(config.feature_layers) > layers:
        raise HeadCheckpointError(
            f"{where} reads hidden state {max(config.feature_layers)} of the target, which has {layers} layers"
        )
    embeddings = model.get_input_embeddings().weight.shape[0]
    if not 0 <= config.mask_token_id < (config.vocab_size if config.own_embedding else embeddings):
        raise HeadCheckpointError(
            f"{where} has mask_token_id {config.mask_token_id}, but there are embeddings of {embeddings} tokens"
        )


def _token_ids(checkpoint: HeadCheckpoint, config: BlockHeadConfig) -> tuple[int, ...] | None:
    """``d2t`` holds the distance from each draft token to its id, ``t2d`` marks the ids that have a draft token."""
    size = config.draft_vocab_size
    if size is None or (size == config.vocab_size and "d2t" not in checkpoint):
        return None
    ids = read_token_ids(checkpoint, size, config.vocab_size)
    if "t2d" in checkpoint:
        known = checkpoint.take("t2d", (config.vocab_size,), torch.bool)
        if not torch.equal(known.nonzero()[:, 0], ids.sort().values):
            raise HeadCheckpointError(f"tensors 't2d' and 'd2t' of {checkpoint.folder.name} name different tokens")
    return tuple(ids.tolist())
