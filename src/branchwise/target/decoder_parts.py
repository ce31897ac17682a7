"""What a compiled decoder is made of, read from a transformers model: its weights by role, and what joins them.

The families below are one architecture with options: norms after the blocks or on queries and keys, biases, layers
without positions, two rotary tables, sliding windows. A model of another family is refused by name; so is one of these
families with a part that has no place here. Knows modules and tensors; knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .rotary import find_length_dependent_rotary
from .support import UnsupportedModel, layer_windows

#: ``config.model_type`` of the families that can be compiled
EXPORTED_MODEL_TYPES = frozenset({"gemma3_text", "llama", "mistral", "qwen2", "qwen3", "smollm3"})
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
REMEDY = "use engine='transformers', or engine='auto', which takes it for models that cannot be compiled"

#: positions ``[n]`` -> cosines and sines ``[n, D]``, float32
Turn = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Linear:
    """``x @ weight.T + bias``; the weight is the model's own tensor ``[out, in]``."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Norm:
    """``x / sqrt(mean(x^2) + epsilon) * weight``, over the last axis."""

    weight: Tensor  # float32 [n]
    epsilon: float


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer.

    Attributes:
        linears: by role: query, key, value, output, gate, up, down.
        before_attention: norm of what attention reads.
        after_attention: norm of what it adds to the residual, if there is one.
        before_mlp: as before_attention.
        after_mlp: as after_attention.
        query_norm: norm of each head's queries, if there is one.
        key_norm: norm of each head's keys, if there is one.
        rotary: which rotary table turns queries and keys; None for none.
        window: sliding window, or None.
    """

    linears: dict[str, Linear]
    before_attention: Norm
    after_attention: Norm | None
    before_mlp: Norm
    after_mlp: Norm | None
    query_norm: Norm | None
    key_norm: Norm | None
    rotary: str | None
    window: int | None


@dataclass(frozen=True, eq=False)
class Decoder:
    """A whole decoder, without its embeddings, which the model itself looks up.

    Attributes:
        heads: query heads H.
        key_heads: key/value heads K.
        width: numbers per head D.
        scale: what scores are multiplied by.
        activation: of the gate: "silu" or "gelu_tanh".
        layers: in order.
        norm: the final one.
        head: the output matrix.
        rotary: the rotary tables by name.
    """

    heads: int
    key_heads: int
    width: int
    scale: float
    activation: str
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    rotary: dict[str, Turn]

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """All matrices by name, in the order in which a forward reads them."""
        for index, layer in enumerate(self.layers):
            for role, linear in layer.linears.items():
                yield f"layers.{index}.{role}", linear
        yield "head", self.head


def check_exported(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModel` for families that cannot be compiled, naming those that can."""
    name = getattr(model.config, "model_type", None) or type(model).__name__
    if name not in EXPORTED_MODEL_TYPES:
        known = ", ".join(sorted(EXPORTED_MODEL_TYPES))
        raise UnsupportedModel(name, f"branchwise compiles {known} only", REMEDY)


def read_decoder(model: PreTrainedModel) -> Decoder:
    """Reads a model of a known family.

    Raises:
        UnsupportedModel: another family, or a part that has no place in the compiled graph.
    """
    check_exported(model)
    _check_options(model)
    inner = model.model
    attentions = [layer.self_attn for layer in inner.layers]
    first, config = attentions[0], model.config
    windows = layer_windows(model)
    layers = tuple(_layer(model, i, windows[i]) for i in range(len(attentions)))
    return Decoder(
        heads=int(config.num_attention_heads),
        key_heads=int(config.num_key_value_heads),
        width=int(first.head_dim),
        scale=float(first.scaling),
        activation=_activation(model),
        layers=layers,
        norm=_norm(model, inner.norm),
        head=_linear(model, "lm_head", model.get_output_embeddings()),
        rotary={name: partial(_turn, inner.rotary_emb, name) for name in {layer.rotary for layer in layers} if name},
    )


def _check_options(model: PreTrainedModel) -> None:
    name, config = model.config.model_type, model.config
    for option in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, option, None) is not None:
            raise UnsupportedModel(name, f"its {option} has no place in the compiled graph", REMEDY)
    if find_length_dependent_rotary(model) is not None:
        raise UnsupportedModel(name, "its rotary frequencies depend on the length", REMEDY)


def _layer(model: PreTrainedModel, index: int, window: int | None) -> Layer:
    layer = model.model.layers[index]
    attention, mlp = layer.self_attn, layer.mlp
    roles = {
        "query": (attention, "q_proj"),
        "key": (attention, "k_proj"),
        "value": (attention, "v_proj"),
        "output": (attention, "o_proj"),
        "gate": (mlp, "gate_proj"),
        "up": (mlp, "up_proj"),
        "down": (mlp, "down_proj"),
    }
    # the norms before the MLP and after attention bear one name in most families, and two in Gemma's
    sandwiched = hasattr(layer, "pre_feedforward_layernorm")
    return Layer(
        linears={role: _linear(model, name, getattr(owner, name)) for role, (owner, name) in roles.items()},
        before_attention=_norm(model, layer.input_layernorm),
        after_attention=_norm(model, layer.post_attention_layernorm) if sandwiched else None,
        before_mlp=_norm(model, layer.pre_feedforward_layernorm if sandwiched else layer.post_attention_layernorm),
        after_mlp=_norm(model, layer.post_feedforward_layernorm) if sandwiched else None,
        query_norm=_norm(model, attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_norm(model, attention.k_norm) if hasattr(attention, "k_norm") else None,
        rotary=_rotary_name(model, index) if getattr(attention, "use_rope", True) else None,
        window=window,
    )


def _linear(model: PreTrainedModel, name: str, module: Any) -> Linear:
    if type(module) is not nn.Linear:
        reason = f"its {name} is a {type(module).__name__}, not a torch Linear (merge adapters, undo quantisation)"
        raise UnsupportedModel(model.config.model_type, reason, REMEDY)
    return Linear(module.weight.detach(), None if module.bias is None else module.bias.detach().float())


def _norm(model: PreTrainedModel, module: Any) -> Norm:
    weight = module.weight.detach().float()
    if model.config.model_type == "gemma3_text":
        return Norm(1.0 + weight, float(module.eps))
    return Norm(weight, float(module.variance_epsilon))


def _activation(model: PreTrainedModel) -> str:
    config = model.config
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise UnsupportedModel(config.model_type, f"its activation {name!r} is none of {known}", REMEDY)
    return _ACTIVATIONS[name]


def _rotary_name(model: PreTrainedModel, index: int) -> str:
    """Families with one table have it under the name "default"; others have one per type of layer."""
    rope_type = getattr(model.model.rotary_emb, "rope_type", None)
    return str(model.config.layer_types[index]) if isinstance(rope_type, dict) else "default"


@torch.no_grad()
def _turn(rotary: nn.Module, name: str, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The model's own tables, which know every kind of scaling."""
    kind = () if name == "default" else (name,)
    cosines, sines = rotary(torch.empty(0, device=positions.device), positions[None], *kind)
    return cosines[0], sines[0]  # [n, D] each
