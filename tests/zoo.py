"""Tiny random models, one per supported family, and configs of families that are refused.

The documented list of supported and refused models (docs/compatibility.md) is generated from this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 37
CONTEXT = 256


@dataclass(frozen=True)
class Family:
    """One architecture in miniature.

    Attributes:
        model_type: ``config.model_type`` as the zoo builds it.
        note: what is special about it.
        options: config values beyond the common ones.
        common: whether the common Llama-like values apply.
        variant: tells configs of one architecture apart.
        tolerance: largest difference of float64 logits between a tree and its paths run alone.
        attention: the model's own attention where the default of some version is not to be compared with.
    """

    model_type: str
    note: str
    options: dict[str, Any] = field(default_factory=dict)
    common: bool = True
    variant: str = ""
    tolerance: float = 1e-10
    attention: str | None = None

    @property
    def name(self) -> str:
        return f"{self.model_type}-{self.variant}" if self.variant else self.model_type


_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED_LAYERS = ["sliding_attention", "full_attention"]
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

SUPPORTED = (
    Family("llama", "rotary positions, grouped heads"),
    Family("mistral", "sliding window in every layer", {"sliding_window": 6, "head_dim": 8}),
    Family("qwen2", "biases on queries, keys and values"),
    Family("qwen3", "normalised queries and keys", {"head_dim": 8}),
    Family("smollm3", "layers without positions", {"no_rope_layers": [1, 0]}),
    Family(
        "gemma2",
        "soft-capped scores, alternating windows",
        {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
        attention="eager",  # transformers 5.10 takes sdpa, which drops the soft-cap
    ),
    Family(
        "gemma3_text",
        "mixed layers with two rotary bases",
        {"head_dim": 8, "sliding_window": 6, "layer_types": _MIXED_LAYERS},
    ),
    Family("phi3", "fused projections, sliding window", {"sliding_window": 7}),
    Family("olmo2", "norms after the blocks"),
    Family(
        "gpt2",
        "learned positions",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
        common=False,
    ),
    Family(
        "opt",
        "learned positions with an offset",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": CONTEXT,
            "word_embed_proj_dim": 32,
        },
        common=False,
    ),
    Family("gpt_neox", "partial rotary positions, parallel blocks"),
    Family(
        "falcon",
        "keeps its own attention: gets the tree as a 4-D mask",
        {"alibi": False, "multi_query": True, "new_decoder_architecture": False, "bos_token_id": 1, "eos_token_id": 2},
    ),
    Family("stablelm", "partial rotary positions, layer norms"),
    Family(
        "cohere2", "mixed layers, no positions in the full ones", {"sliding_window": 6, "layer_types": _MIXED_LAYERS}
    ),
    Family("granite", "scaled residuals and logits", {"logits_scaling": 2.0, "residual_multiplier": 0.5}),
    Family("mixtral", "mixture of experts", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("qwen3_moe", "mixture of experts", {"head_dim": 8, "num_experts": 4, **_MOE}),
    Family(
        "gpt_oss",
        "attention sinks, mixed layers, mixture of experts",
        {
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 6,
            "layer_types": _MIXED_LAYERS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    Family(
        "deepseek_v3",
        "latent attention: one compressed head is cached, keys and values differ in width",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 12,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6,
            "v_head_dim": 10,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            **_MOE,
        },
        # its router multiplies in float32 whatever the model's type, and there the number of rows changes the rounding
        tolerance=2e-6,
    ),
)

#: rotary embeddings whose frequencies depend on the length, past their boundary of 24 positions
LENGTH_DEPENDENT = (
    Family(
        "llama",
        "dynamic NTK rotary scaling",
        {
            "max_position_embeddings": 24,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
        variant="dynamic",
    ),
    Family(
        "phi3",
        "longrope: short and long factors",
        {
            "max_position_embeddings": 96,
            "original_max_position_embeddings": 24,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 4,
                "long_factor": [1.5, 2.0, 3.0, 4.0],
                "original_max_position_embeddings": 24,
            },
        },
        variant="longrope",
    ),
)


@dataclass(frozen=True)
class Refused:
    """A family that must be refused before the first token, and a word its message must contain."""

    model_type: str
    reason: str
    options: dict[str, Any]
    auto_class: Callable[..., Any] = AutoModelForCausalLM.from_config


def _seq2seq(config: Any) -> PreTrainedModel:
    from transformers import AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM.from_config(config)


_HYBRID = {**_COMMON, "num_hidden_layers": 2}

REFUSED = (
    Refused(
        "t5",
        "encoder-decoder",
        {"vocab_size": VOCAB, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2},
        _seq2seq,
    ),
    Refused("mamba", "recurrent", {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    Refused(
        "jamba", "recurrent", {**_HYBRID, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    ),
    Refused(
        "recurrent_gemma",
        "recurrent",
        {
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "lru_width": 16,
        },
    ),
    Refused(
        "qwen3_next",
        "recurrent",
        {
            **_HYBRID,
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 2,
            **_MOE,
        },
    ),
    Refused("bloom", "ALiBi", {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 1, "n_head": 2}),
    Refused("mpt", "ALiBi", {"vocab_size": VOCAB, "d_model": 16, "n_heads": 2, "n_layers": 1}),
    Refused(
        "falcon",
        "ALiBi",
        {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "alibi": True},
    ),
)


def build(family: Family, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> PreTrainedModel:
    """A tiny random model in eval mode; weights large enough that outputs vary."""
    values = {**(_COMMON if family.common else {}), **family.options, **options}
    config = AutoConfig.for_model(family.model_type, **values)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=family.attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.35)
            else:
                # norms and biases away from their neutral start, sinks away from zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.to(dtype).eval()
    if hasattr(model, "set_experts_implementation"):
        # the fused expert kernels do not run in float64
        model.set_experts_implementation("eager")
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def build_refused(refused: Refused) -> PreTrainedModel:
    """The smallest instance of a refused family."""
    return refused.auto_class(AutoConfig.for_model(refused.model_type, **refused.options)).eval()


def tiny_llama(seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> PreTrainedModel:
    """The default test model: two Llama layers over 37 tokens."""
    return build(SUPPORTED[0], seed, dtype, **options)
