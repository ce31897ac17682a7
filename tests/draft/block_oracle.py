"""A block head again, position by position in float64: loops over heads and keys, no cache, no batch, no tree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

import torch
from head_folders import BLOCK_SIZE, MASK, SIZES
from torch import Tensor
from transformers import PreTrainedModel


def features_by_recompute(model: PreTrainedModel, tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
    """The target's hidden states of ``tokens`` side by side, ``[T, L * h]``, from one plain forward."""
    if not tokens:
        return torch.zeros(0, len(layers) * SIZES["hidden_size"], dtype=torch.float64)
    output = model(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
    return torch.cat([output.hidden_states[layer][0] for layer in layers], dim=-1)


def _norm(vector: Tensor, weight: Tensor) -> Tensor:
    return vector / (vector.square().mean() + SIZES["rms_norm_eps"]).sqrt() * weight


@cache
def _frequency(index: int, width: int, theta: float) -> float:
    """The frequencies are float32 numbers wherever such heads are run."""
    return float(torch.tensor(1.0) / theta ** (torch.tensor(2.0 * index) / width))


def _turned(vector: Tensor, position: int, theta: float) -> Tensor:
    numbers, half = vector.tolist(), len(vector) // 2
    turned = list(numbers)
    for i in range(half):
        angle = position * _frequency(i, len(numbers), theta)
        cosine, sine = math.cos(angle), math.sin(angle)
        turned[i] = numbers[i] * cosine - numbers[i + half] * sine
        turned[i + half] = numbers[i + half] * cosine + numbers[i] * sine
    return torch.tensor(turned, dtype=torch.float64)


@torch.no_grad()
def block_laws(
    tensors: dict[str, Tensor],
    model: PreTrainedModel,
    tokens: Sequence[int],
    *,
    layers: Sequence[int] = (1, 2),
    causal: bool = False,
    theta: float = 1000.0,
) -> Tensor:
    """Probabilities ``[BLOCK_SIZE - 1, V]`` of the tokens after ``tokens``, in the target's vocabulary."""
    weights = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    heads, kv_heads, width = SIZES["num_attention_heads"], SIZES["num_key_value_heads"], SIZES["head_dim"]
    features = features_by_recompute(model, tokens[:-1], layers).double()
    context = [_norm(weights["fc.weight"] @ row, weights["hidden_norm.weight"]) for row in features]
    root = len(tokens) - 1
    table = weights.get("embed_tokens.weight", model.get_input_embeddings().weight.double())
    block = [table[token].clone() for token in (tokens[-1], *[MASK] * (BLOCK_SIZE - 1))]
    for layer in range(SIZES["num_hidden_layers"]):
        own = {name[len(f"layers.{layer}.") :]: w for name, w in weights.items() if name.startswith(f"layers.{layer}.")}

        def project(name: str, row: Tensor, own=own) -> Tensor:
            return own[f"self_attn.{name}.weight"] @ row + own.get(f"self_attn.{name}.bias", 0.0)

        inputs = [*context, *(_norm(row, own["input_layernorm.weight"]) for row in block)]
        keys = [
            [
                _turned(_norm(key, own["self_attn.k_norm.weight"]), at, theta)
                for key in project("k_proj", row).view(-1, width)
            ]
            for at, row in enumerate(inputs)
        ]
        values = [project("v_proj", row).view(kv_heads, width) for row in inputs]
        updated = []
        for place, row in enumerate(block):
            query = project("q_proj", inputs[root + place]).view(heads, width)
            seen = range(root + place + 1) if causal else range(len(inputs))
            mixed = []
            for head in range(heads):
                kv = head // (heads // kv_heads)
                q = _turned(_norm(query[head], own["self_attn.q_norm.weight"]), root + place, theta)
                scores = torch.stack([q @ keys[at][kv] / math.sqrt(width) for at in seen])
                mixed.append(sum(weight * values[at][kv] for weight, at in zip(scores.softmax(0), seen, strict=True)))
            row = row + project("o_proj", torch.cat(mixed))
            inner = _norm(row, own["post_attention_layernorm.weight"])
            gate = own["mlp.gate_proj.weight"] @ inner
            row = row + own["mlp.down_proj.weight"] @ (gate * gate.sigmoid() * (own["mlp.up_proj.weight"] @ inner))
            updated.append(row)
        block = updated
    hidden = torch.stack([_norm(row, weights["norm.weight"]) for row in block[1:]])
    if "lm_head.weight" not in weights:
        return (hidden @ model.get_output_embeddings().weight.double().T).softmax(-1)
    small = (hidden @ weights["lm_head.weight"].T).softmax(-1)
    laws = torch.zeros(len(hidden), SIZES["vocab_size"], dtype=torch.float64)
    for draft, distance in enumerate(weights["d2t"].tolist()):
        laws[:, draft + distance] = small[:, draft]
    return laws


def best_paths(laws: Tensor, nodes: int, depth: int) -> dict[tuple[int, ...], float]:
    """The ``nodes`` best paths of the product of ``laws`` by trying all of them, with their probabilities."""
    ranked = [row.argsort(descending=True)[:nodes].tolist() for row in laws]
    paths = {
        path: math.prod(float(laws[i, token]) for i, token in enumerate(path))
        for length in range(1, depth + 1)
        # rank r at depth d comes after d - 1 ancestors and r siblings
        for path in itertools.product(*(ranked[i][: max(0, nodes - length + 1)] for i in range(length)))
    }
    return dict(sorted(paths.items(), key=lambda item: (-item[1], len(item[0])))[:nodes])
