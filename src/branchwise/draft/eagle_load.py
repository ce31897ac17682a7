"""From the folder of an EAGLE head to a head that fits a target, or to a message that says why it does not.

Knows how the tensors of each layout are called. Does not know what is computed with them.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .checkpoint import HeadCheckpoint, blank
from .eagle_config import EagleConfig, read_eagle_config
from .eagle_head import EagleHead
from .head_config import HeadCheckpointError
from .token_map import read_token_ids


def load_eagle_head(folder: str | os.PathLike[str], model: PreTrainedModel, *, allow_pickle: bool = False) -> EagleHead:
    """Loads a published or trained head for ``model``, in the model's dtype and on its device.

    Args:
        folder: with a config and weights, in the layout of EAGLE-1/2, of EAGLE-3, of SpecForge or of speculators.
        model: the target; left alone. The head keeps looking at its embeddings and output layer where it has none.
        allow_pickle: see `HeadCheckpoint`.

    Raises:
        HeadCheckpointError: the folder is damaged or incomplete, asks for something that is not honoured, or belongs
            to another target; the message names tensor, key or value.
    """
    checkpoint = HeadCheckpoint(folder, allow_pickle=allow_pickle)
    config = read_eagle_config(checkpoint)
    where = checkpoint.folder.name
    _check_target(config, model, where)
    layers = feature_layers(config, model, where)
    device = model.get_input_embeddings().weight.device
    head = blank(lambda: EagleHead(config, layers), model.dtype, device)
    first = "midlayer." if any(name.startswith("midlayer.") for name in checkpoint.names) else "layers.0."
    checkpoint.fill(head, lambda name: name.replace("layers.0.", first))
    head.target_ids = _target_ids(config, checkpoint, device)
    checkpoint.finish()
    borrow_from(head, model, where)
    return head.eval().requires_grad_(False)


def drafted_tokens(folder: str | os.PathLike[str], model: PreTrainedModel) -> tuple[list[int], int | None]:
    """What a head can draft, without reading its weights.

    Returns:
        the target's ids of its own vocabulary, in the order of its rows, none where that is the target's; and among how
        many of the first its deeper levels choose, or None: among all.

    Raises:
        HeadCheckpointError: as for `load_eagle_head`.
    """
    checkpoint = HeadCheckpoint(folder)
    config = read_eagle_config(checkpoint)
    _check_target(config, model, checkpoint.folder.name)
    ids = _target_ids(config, checkpoint, torch.device("cpu"))
    return [] if ids is None else ids.tolist(), config.deep_draft_vocab_size


def feature_layers(config: EagleConfig, model: PreTrainedModel, where: str) -> tuple[int, ...]:
    """Which hidden states of the target a head reads, as numbered in `TargetOutput.features`.

    EAGLE-1 heads continue the states that the output layer reads, behind the final norm (the authors' ``outputs[0]``).
    EAGLE-3 heads read the inputs of three layers: by default of an early, a middle and a late one, as the authors',
    vLLM's and speculators' code agree.

    Raises:
        HeadCheckpointError: the config names a layer that the target does not have.
    """
    layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    if config.version == 1:
        return (layers,)
    if config.feature_layers is None:
        if layers < 3:
            raise HeadCheckpointError(
                f"{where} names no layers of the target to read, and the default (2, n // 2, n - 3) needs n >= 3 "
                f"layers, not {layers}"
            )
        return (2, layers // 2, layers - 3)
    for layer in config.feature_layers:
        # trainers mean the raw output of the last layer by that number, transformers has it normalised only
        if not 0 <= layer < layers:
            raise HeadCheckpointError(
                f"{where} reads the input of layer {layer}; the target has the layers 0 .. {layers - 1}"
            )
    return config.feature_layers


def borrow_from(head: EagleHead, model: PreTrainedModel, where: str) -> None:
    """Points the head at the target's embeddings and output layer where it has none of its own.

    Raises:
        HeadCheckpointError: the target's are of another width, or not plain numbers (quantised).
    """
    config = head.config
    embedding, output = None, None
    if not config.own_embeddings:
        embedding = _usable(model.get_input_embeddings().weight, config, "embeddings", where)
    if config.tied_output:
        output = None if embedding is None else (embedding, None)
    elif not config.own_output:
        layer = model.get_output_embeddings()
        bias = getattr(layer, "bias", None)
        output = (_usable(layer.weight, config, "output layer", where), None if bias is None else bias.detach())
    head.borrow(embedding, output)


def _usable(weight: Tensor, config: EagleConfig, what: str, where: str) -> Tensor:
    if not weight.is_floating_point():
        raise HeadCheckpointError(
            f"{where} uses the target's {what}, whose weights are {weight.dtype}: load it unquantised"
        )
    if tuple(weight.shape) != (config.vocab_size, config.hidden_size):
        raise HeadCheckpointError(
            f"{where} has no {what} of its own and the target's are {list(weight.shape)}, not "
            f"{[config.vocab_size, config.hidden_size]}"
        )
    return weight.detach()


def _check_target(config: EagleConfig, model: PreTrainedModel, where: str) -> None:
    config.target.check(model, where)
    known = {type(model).__name__, *(getattr(model.config, "architectures", None) or ())}
    if config.architectures and known.isdisjoint(config.architectures):
        raise HeadCheckpointError(
            f"{where} was trained for a {' or '.join(config.architectures)}, the target is a {type(model).__name__}; "
            "use the head that was trained for it"
        )


def _target_ids(config: EagleConfig, checkpoint: HeadCheckpoint, device: torch.device) -> Tensor | None:
    """The target's ids of the head's own vocabulary, from the offsets ``d2t``; ``t2d`` must say the same."""
    where = checkpoint.folder.name
    if "d2t" not in checkpoint and config.draft_vocab_size == config.vocab_size:
        if "t2d" in checkpoint:
            checkpoint.skip("t2d")  # marks every token, without saying where it went
        return None
    ids = read_token_ids(checkpoint, config.draft_vocab_size, config.vocab_size)
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[ids] = True
    if "t2d" in checkpoint and not torch.equal(checkpoint.take("t2d", (config.vocab_size,), torch.bool), known):
        raise HeadCheckpointError(f"tensors 'd2t' and 't2d' of {where} speak of different target tokens")
    return ids.to(device)
