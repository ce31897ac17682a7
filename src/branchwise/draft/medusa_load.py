"""Loading Medusa heads from their folder. Knows the layout; does not know how they draft."""

from __future__ import annotations

import os
import re

from transformers import PreTrainedModel

from .checkpoint import HeadCheckpoint, blank
from .head_config import HeadCheckpointError
from .head_target import RecordedTarget
from .medusa_head import MedusaHeads

#: keys of the target's own config, which some heads were published with; the heads have nothing that they could change
TARGET_KEYS = frozenset(
    {
        "attention_bias",
        "head_dim",
        "hidden_act",
        "intermediate_size",
        "max_position_embeddings",
        "max_window_layers",
        "mlp_bias",
        "model_type",
        "num_attention_heads",
        "num_key_value_heads",
        "pretraining_tp",
        "rms_norm_eps",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "use_sliding_window",
        "version",
    }
)


def load_medusa_heads(
    folder: str | os.PathLike[str], model: PreTrainedModel, *, allow_pickle: bool = False
) -> MedusaHeads:
    """The heads in ``folder``, in the dtype and on the device of ``model``, their target.

    All heads in the file are loaded. Published configs count fewer (2 where the file holds 5), so only a larger
    ``medusa_num_heads`` is an error.

    Raises:
        HeadCheckpointError: the folder does not hold such heads, something in it is not honoured or not used, or they
            were trained for another target.
    """
    checkpoint = HeadCheckpoint(folder, allow_pickle=allow_pickle)
    config, where = checkpoint.config, checkpoint.folder.name
    blocks = config.take("medusa_num_layers", int, 1)
    heads = 1 + max((int(name.split(".")[0]) for name in checkpoint.names if re.match(r"\d+\.", name)), default=-1)
    counted = config.take("medusa_num_heads", int, heads)
    if heads == 0:
        raise HeadCheckpointError(f"{where} holds no Medusa heads: it has no tensor named like '0.{blocks}.weight'")
    if counted > heads:
        raise HeadCheckpointError(f"{where} holds {heads} heads, but its config counts {counted} ('medusa_num_heads')")
    if blocks < 1:
        raise HeadCheckpointError(f"{config.where} has 'medusa_num_layers' = {blocks}; a head has at least 1")
    RecordedTarget(
        config.take("hidden_size", int, None),
        config.take("vocab_size", int, None),
        config.take("num_hidden_layers", int, None),
        config.take("base_model_name_or_path", str, None),
    ).check(model, where)
    config.take("tie_word_embeddings", bool, None)  # the target's
    config.finish(ignored=TARGET_KEYS)
    output = f"0.{blocks}.weight"
    if output in checkpoint and len(checkpoint.shape(output)) == 2:
        vocab_size, hidden_size = checkpoint.shape(output)
        RecordedTarget(hidden_size, vocab_size).check(model, where)
    target = model.get_output_embeddings()
    module = blank(
        lambda: MedusaHeads(heads, blocks, target.in_features, target.out_features),
        model.dtype,
        model.get_input_embeddings().weight.device,
    )
    checkpoint.fill(module)
    checkpoint.finish()
    return module.eval().requires_grad_(False)
