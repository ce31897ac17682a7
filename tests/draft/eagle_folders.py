"""EAGLE heads with random weights, written as they are published, each beside an oracle of the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from eagle_oracle import OracleHead
from safetensors.torch import save_file
from torch import Tensor

from zoo import VOCAB

#: of the target
HIDDEN = 32
DRAFT_VOCAB = 20
#: a layer's keys, as in every layout
LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
#: what published configs also say, to no effect
CHATTER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "torch_dtype": "float16",
    "transformers_version": "4.46.2",
    "use_cache": True,
}


@dataclass(frozen=True)
class Published:
    """A head: the files to write, and what its oracle must know."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    oracle: dict[str, Any]
    file: str = "model.safetensors"

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.file.endswith(".safetensors"):
            save_file({name: tensor.clone() for name, tensor in self.tensors.items()}, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        return folder

    def oracle_for(self, model: Any) -> OracleHead:
        layer = self.config.get("transformer_layer_config", self.config)
        sizes = {**layer, "head_dim": layer.get("head_dim", layer["hidden_size"] // layer["num_attention_heads"])}
        target = {"embedding": model.get_input_embeddings().weight, "output": model.get_output_embeddings().weight}
        target = {name: weight.detach() for name, weight in target.items()}
        given = dict(self.oracle)
        sizes |= given.pop("sizes", {})
        return OracleHead(self.tensors, sizes, target, **given)


class Coins:
    """Random tensors, in the order they are asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 0.3) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64) * scale

    def norm(self, width: int) -> Tensor:
        return 1.0 + self(width, scale=0.1)


def layer_tensors(coins: Coins, prefix: str, layer: dict[str, Any], width: int, norms: tuple[str, ...]) -> dict:
    """A decoder layer that reads ``width`` numbers per token."""
    h, wide = layer["hidden_size"], layer["intermediate_size"]
    dim = layer.get("head_dim", h // layer["num_attention_heads"])
    queries, keys = layer["num_attention_heads"] * dim, layer["num_key_value_heads"] * dim
    tensors = {
        "self_attn.q_proj.weight": coins(queries, width),
        "self_attn.k_proj.weight": coins(keys, width),
        "self_attn.v_proj.weight": coins(keys, width),
        "self_attn.o_proj.weight": coins(h, queries),
        "mlp.gate_proj.weight": coins(wide, h),
        "mlp.up_proj.weight": coins(wide, h),
        "mlp.down_proj.weight": coins(h, wide),
    }
    for name in ("post_attention_layernorm", *norms):
        tensors[f"{name}.weight"] = coins.norm(h)
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def vocabulary(coins: Coins, size: int = DRAFT_VOCAB) -> dict[str, Tensor]:
    """A trimmed vocabulary: offsets and the mask."""
    chosen = torch.randperm(VOCAB, generator=coins._generator)[:size].sort().values
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[chosen] = True
    return {"d2t": chosen - torch.arange(size), "t2d": known}


def eagle1(seed: int = 1) -> Published:
    """EAGLE-1 and 2: own copy of the embeddings, a bias in fc, weights in a pickle."""
    coins = Coins(seed)
    tensors = {"embed_tokens.weight": coins(VOCAB, HIDDEN), "fc.weight": coins(HIDDEN, 2 * HIDDEN)}
    tensors |= {"fc.bias": coins(HIDDEN)} | layer_tensors(coins, "layers.0.", LAYER, HIDDEN, ())
    config = CHATTER | LAYER | {"bias": True, "architectures": ["LlamaForCausalLM"]}
    return Published(config, tensors, {"version": 1}, "pytorch_model.bin")


def eagle1_borrowing(seed: int = 2) -> Published:
    """EAGLE-1 for Qwen2: biased queries, keys and values, nothing of its own that the target has; two layers."""
    coins = Coins(seed)
    config = CHATTER | LAYER | {"qkv_bias": True, "num_hidden_layers": 2, "rope_theta": 1e6, "model_type": "qwen2"}
    tensors = {"fc.weight": coins(HIDDEN, 2 * HIDDEN)}
    tensors |= layer_tensors(coins, "layers.0.", LAYER, HIDDEN, ())
    tensors |= layer_tensors(coins, "layers.1.", LAYER, HIDDEN, ("input_layernorm",))
    for index in range(2):
        for name, width in (("q", 32), ("k", 16), ("v", 16)):
            tensors[f"layers.{index}.self_attn.{name}_proj.bias"] = coins(width)
    return Published(config, tensors, {"version": 1})


def _eagle3(coins: Coins, prefix: str, layer: dict[str, Any], features: int) -> dict[str, Tensor]:
    h = layer["hidden_size"]
    tensors = {"fc.weight": coins(h, features), "norm.weight": coins.norm(h)}
    return tensors | layer_tensors(coins, prefix, layer, 2 * h, ("hidden_norm", "input_layernorm"))


def eagle3(seed: int = 3) -> Published:
    """EAGLE-3 as its authors write it: midlayer, a trimmed vocabulary, the target's embeddings."""
    coins = Coins(seed)
    tensors = _eagle3(coins, "midlayer.", LAYER, 3 * HIDDEN) | vocabulary(coins)
    tensors["lm_head.weight"] = coins(DRAFT_VOCAB, HIDDEN)
    config = CHATTER | LAYER | {"draft_vocab_size": DRAFT_VOCAB}
    return Published(config, tensors, {"version": 3, "prefix": "midlayer."})


def specforge(seed: int = 4) -> Published:
    """SpecForge's keys: layers of the target by number, another width than the target's, scaled positions."""
    coins = Coins(seed)
    layer = LAYER | {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
    tensors = _eagle3(coins, "midlayer.", layer, 3 * HIDDEN) | vocabulary(coins)
    tensors |= {"lm_head.weight": coins(DRAFT_VOCAB, 24), "embed_tokens.weight": coins(VOCAB, 24)}
    config = (
        CHATTER
        | layer
        | {
            "draft_vocab_size": DRAFT_VOCAB,
            "target_hidden_size": HIDDEN,
            "target_model_type": "llama",
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 1, 2], "use_aux_hidden_state": True},
        }
    )
    return Published(config, tensors, {"version": 3, "prefix": "midlayer.", "sizes": {"linear_factor": 2.0}})


def _speculators(layer: dict[str, Any], **options: Any) -> dict[str, Any]:
    serving = {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {"proposal_type": "greedy", "speculative_tokens": 5, "accept_tolerance": 0.0, "verifier_accept_k": 1}
        ],
        "verifier": {"name_or_path": "owner/tiny", "architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]},
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": serving,
        "transformer_layer_config": {**layer, "attention_dropout": 0.0, "layer_types": ["full_attention"]},
        "embed_requires_grad": False,
        "target_hidden_size": None,
        **options,
    }


def speculators(seed: int = 5) -> Published:
    """The speculators library: layers.0, the residual behind the norm."""
    coins = Coins(seed)
    tensors = _eagle3(coins, "layers.0.", LAYER, 3 * HIDDEN) | vocabulary(coins)
    tensors["lm_head.weight"] = coins(DRAFT_VOCAB, HIDDEN)
    config = _speculators(LAYER, draft_vocab_size=DRAFT_VOCAB, norm_before_residual=True)
    return Published(config, tensors, {"version": 3, "options": {"norm_before_residual": True}})


def speculators_qwen3(seed: int = 6) -> Published:
    """The same with Qwen3 layers, two of them, a norm before fc and the target's whole vocabulary and output layer."""
    coins = Coins(seed)
    layer = LAYER | {"model_type": "qwen3", "head_dim": 16, "num_hidden_layers": 2, "use_sliding_window": False}
    tensors = _eagle3(coins, "layers.0.", layer, 2 * HIDDEN) | {"input_norm.weight": coins.norm(2 * HIDDEN)}
    tensors |= layer_tensors(coins, "layers.1.", layer, HIDDEN, ("input_layernorm",))
    for index in range(2):
        for name in ("q_norm", "k_norm"):
            tensors[f"layers.{index}.self_attn.{name}.weight"] = coins.norm(16)
    config = _speculators(
        layer,
        draft_vocab_size=VOCAB,
        norm_before_residual=False,
        norm_before_fc=True,
        eagle_aux_hidden_state_layer_ids=[1, 4],
    )
    return Published(config, tensors, {"version": 3, "options": {"norm_before_fc": True}})


def eagle3_1(seed: int = 7) -> Published:
    """EAGLE-3.1's norms, and an output layer tied to the head's own embeddings.

    With this project's embedding residual, and few tokens to choose from below the first level.
    """
    coins = Coins(seed)
    tensors = _eagle3(coins, "layers.0.", LAYER, 3 * HIDDEN) | {"embed_tokens.weight": coins(VOCAB, HIDDEN)}
    tensors |= {f"fc_norm.{i}.weight": coins.norm(HIDDEN) for i in range(3)}
    tensors["embedding_residual.weight"] = coins(HIDDEN, HIDDEN)
    tied = LAYER | {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    config = _speculators(
        tied,
        draft_vocab_size=VOCAB,
        deep_draft_vocab_size=VOCAB // 2 + 1,
        norm_before_residual=True,
        fc_norm=True,
        norm_output=True,
        embedding_residual=True,
    )
    flags = ("norm_before_residual", "fc_norm", "norm_output", "embedding_residual", "tied")
    options = dict.fromkeys(flags, True) | {"deep": VOCAB // 2 + 1}
    oracle = {"version": 3, "options": options, "sizes": {"rope_theta": 500000.0}}
    return Published(config, tensors, oracle)


LAYOUTS: dict[str, Callable[[], Published]] = {
    make.__name__: make
    for make in (eagle1, eagle1_borrowing, eagle3, specforge, speculators, speculators_qwen3, eagle3_1)
}


def friendly() -> Published:
    """An EAGLE-1 head that knows its target a little: its output layer is the target's, so drafts are often right."""
    made = LAYOUTS["eagle1"]()
    with torch.no_grad():
        made.tensors["fc.weight"].zero_()
        made.tensors["fc.weight"][:, 32:] = torch.eye(32)
        made.tensors["fc.bias"].zero_()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            made.tensors[f"layers.0.{name}.weight"].mul_(0.05)
    return made
