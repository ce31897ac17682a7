"""Heads with random weights, written as they are published: Medusa, DFlash, JetSpec and the speculators library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from zoo import VOCAB

#: of the tiny targets
HIDDEN = 32
#: of the tiny block heads
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
}
BLOCK_SIZE = 5
MASK = 36
DRAFT_VOCAB = 20


def write_head(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str = "model.safetensors"
) -> Path:
    """A folder with both files; the file's ending says of which kind the second is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


def medusa_tensors(heads: int, blocks: int, seed: int = 0) -> dict[str, Tensor]:
    coins = torch.Generator().manual_seed(seed)
    tensors = {}
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = torch.randn(HIDDEN, HIDDEN, generator=coins) * 0.3
            tensors[f"{head}.{block}.linear.bias"] = torch.randn(HIDDEN, generator=coins) * 0.1
        tensors[f"{head}.{blocks}.weight"] = torch.randn(VOCAB, HIDDEN, generator=coins) * 0.5
    return tensors


def write_medusa(
    folder: Path,
    heads: int = 3,
    blocks: int = 1,
    file: str = "medusa_lm_head.safetensors",
    **config: Any,
) -> Path:
    values = {"medusa_num_heads": heads, "medusa_num_layers": blocks, "transformers_version": "4.31.0", **config}
    return write_head(folder, values, medusa_tensors(heads, blocks), file)


def block_tensors(features: int = 2, bias: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """All tensors of a block head without embeddings and output layer, by their published names."""
    coins = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=coins) * 0.35

    def vector(size: int, centre: float = 1.0) -> Tensor:
        return centre + torch.randn(size, generator=coins) * 0.2

    width, kv_width, inner = 4 * 8, 2 * 8, SIZES["intermediate_size"]
    tensors = {"fc.weight": matrix(HIDDEN, features * HIDDEN), "hidden_norm.weight": vector(HIDDEN)}
    for index in range(SIZES["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj.weight": matrix(width, HIDDEN),
            "self_attn.k_proj.weight": matrix(kv_width, HIDDEN),
            "self_attn.v_proj.weight": matrix(kv_width, HIDDEN),
            "self_attn.o_proj.weight": matrix(HIDDEN, width),
            "self_attn.q_norm.weight": vector(8),
            "self_attn.k_norm.weight": vector(8),
            "input_layernorm.weight": vector(HIDDEN),
            "post_attention_layernorm.weight": vector(HIDDEN),
            "mlp.gate_proj.weight": matrix(inner, HIDDEN),
            "mlp.up_proj.weight": matrix(inner, HIDDEN),
            "mlp.down_proj.weight": matrix(HIDDEN, inner),
        }
        if bias:
            sizes = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width, "o_proj": HIDDEN}
            layer |= {f"self_attn.{name}.bias": vector(size, 0.0) for name, size in sizes.items()}
        tensors |= {f"layers.{index}.{name}": tensor for name, tensor in layer.items()}
    return tensors | {"norm.weight": vector(HIDDEN)}


def dflash_config(**changes: Any) -> dict[str, Any]:
    """As z-lab writes it; changes under ``dflash_config`` are given as a dict of that name."""
    nested = {"target_layer_ids": [0, 1], "mask_token_id": MASK} | changes.pop("dflash_config", {})
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "dtype": "bfloat16",
        **SIZES,
        "layer_types": ["full_attention"] * SIZES["num_hidden_layers"],
        "max_window_layers": 2,
        "rope_scaling": None,
        "rope_theta": 1000.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "num_target_layers": 2,
        "block_size": BLOCK_SIZE,
        "dflash_config": nested,
    } | changes


def write_dflash(folder: Path, *, seed: int = 0, bias: bool = False, **changes: Any) -> Path:
    features = len(changes.get("dflash_config", {}).get("target_layer_ids", [0, 1]))
    return write_head(folder, dflash_config(attention_bias=bias, **changes), block_tensors(features, bias, seed))


def speculators_config(**changes: Any) -> dict[str, Any]:
    """As the speculators library writes it, in full."""
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK_SIZE - 1}],
            "verifier": {"name_or_path": "someone/tiny-target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {
            "model_type": "qwen3",
            **SIZES,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "draft_vocab_size": DRAFT_VOCAB,
        "block_size": BLOCK_SIZE,
        "aux_hidden_state_layer_ids": [1, 2],
        "mask_token_id": MASK,
        "target_hidden_size": None,
        "projector_type": "dflash",
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        "lambda_base_start": 1.0,
    } | changes


def vocabulary_tensors(seed: int = 0) -> dict[str, Tensor]:
    """Output layer and maps of a smaller vocabulary: every token but the multiples of 2 below 34."""
    coins = torch.Generator().manual_seed(seed + 100)
    ids = torch.tensor([token for token in range(VOCAB) if token % 2 or token >= 34])
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[ids] = True
    return {
        "lm_head.weight": torch.randn(DRAFT_VOCAB, HIDDEN, generator=coins) * 0.5,
        "d2t": ids - torch.arange(DRAFT_VOCAB),
        "t2d": known,
    }


def write_speculators(folder: Path, *, seed: int = 0, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    held = block_tensors(seed=seed) | (vocabulary_tensors(seed) if tensors is None else tensors)
    return write_head(folder, speculators_config(**changes), held)
