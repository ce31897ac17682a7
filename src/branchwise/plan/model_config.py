"""The shape of a model from its config, without any weights.

The model is built on torch's meta device, where parameters have shapes and no memory, and counted. Knows transformers'
configs; knows no machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ..hub import resolve
from ..target.support import TESTED_MODEL_TYPES, check_supported, layer_windows
from .model_shape import ModelShape

#: families whose widths cannot be read off the usual names, and why
UNREADABLE = {
    "deepseek_v3": "its latent attention is kept compressed by other engines and expanded here; the two differ by far",
    "falcon": "its number of key/value heads follows rules of its own",
}
#: families with as many key/value heads as query heads, whatever else their config says
_UNGROUPED = frozenset({"gpt2", "gpt_neox", "opt"})
#: names of the number of experts and of those that a token takes
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_TAKEN = ("num_experts_per_tok", "experts_per_token")


def read_shape(name: str) -> ModelShape:
    """The shape of a model.

    Args:
        name: a config file or its folder, a short name, or a Hub id.

    Raises:
        ValueError: there is no such config, or the model is of a kind that is not planned for; says why.
        OSError: transformers finds no such model.
    """
    config = _read_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return shape_of(model.eval(), Path(name).name.removesuffix(".json"))


def shape_of(model: PreTrainedModel, name: str) -> ModelShape:
    """The shape of a model that was built already.

    Raises:
        ValueError: as for `read_shape`.
    """
    check_supported(model)
    config = model.config.get_text_config(decoder=True)
    kind = config.model_type
    if kind in UNREADABLE or kind not in TESTED_MODEL_TYPES:
        why = UNREADABLE.get(kind, "its widths were never compared with what it really does")
        planned = ", ".join(sorted(TESTED_MODEL_TYPES - UNREADABLE.keys()))
        raise ValueError(f"model type {kind!r} is not planned for: {why}; there are {planned}")
    heads = config.num_attention_heads
    kv_heads = None if kind in _UNGROUPED else getattr(config, "num_key_value_heads", None)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    counts = _count(model)
    experts, taken = _experts(config, counts["experts"])
    return ModelShape(
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        heads=heads,
        kv_heads=kv_heads or heads,
        key_width=width,
        value_width=width,
        windows=tuple(layer_windows(model)),
        matrix_parameters=counts["matrices"],
        vector_parameters=counts["vectors"],
        expert_parameters=counts["experts"],
        experts=experts,
        experts_taken=taken,
        head_parameters=counts["head"],
        embedding_parameters=counts["tables"],
    )


def _read_config(name: str) -> Any:
    path = Path(os.path.expanduser(name))
    if name.endswith(".json") or path.is_file():
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{name} cannot be read as a config: {error}") from None
        if not isinstance(record, dict) or "model_type" not in record:
            raise ValueError(f"{name} is no config of transformers: it has no model_type")
        kind = record.pop("model_type")
        if kind not in CONFIG_MAPPING:
            raise ValueError(f"{name}: this transformers knows no model type {kind!r}")
        return AutoConfig.for_model(kind, **record)
    return AutoConfig.from_pretrained(resolve(os.path.expanduser(name)))


def _count(model: PreTrainedModel) -> dict[str, int]:
    """Parameters by what a forward does with them."""
    head = model.get_output_embeddings().weight
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    counts = dict.fromkeys(("matrices", "vectors", "experts", "head", "tables"), 0)
    for name, parameter in model.named_parameters():
        counts[_kind(name, parameter, head, tables)] += parameter.numel()
    return counts


def _kind(name: str, parameter: nn.Parameter, head: nn.Parameter, tables: set[int]) -> str:
    if parameter is head:
        return "head"
    if id(parameter) in tables:
        return "tables"
    if ".experts." in name:
        return "experts"
    return "matrices" if parameter.ndim > 1 else "vectors"


def _experts(config: Any, parameters: int) -> tuple[int, int]:
    if not parameters:
        return 1, 1
    experts = next((getattr(config, key) for key in _EXPERTS if getattr(config, key, None)), None)
    taken = next((getattr(config, key) for key in _TAKEN if getattr(config, key, None)), None)
    if not experts or not taken:
        raise ValueError(f"model type {config.model_type!r} has experts, but its config does not say how many")
    return experts, taken
