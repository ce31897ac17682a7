"""Which models branchwise can keep exact, which it refuses, and why.

Refusals come before the first token and say what to do instead. They ask for capabilities (is there a recurrent state,
does the cache roll back), not for class names; families that pass but are not in `TESTED_MODEL_TYPES` are probed by the
target.
"""

from __future__ import annotations

import inspect

from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

#: ``config.model_type`` of the families whose float64 equality is in the test suite
TESTED_MODEL_TYPES = frozenset(
    {
        "cohere2",
        "deepseek_v3",
        "falcon",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "opt",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
    }
)


class UnsupportedModel(ValueError):
    """The model cannot be sped up exactly; the message says which, why and what to do instead."""

    def __init__(self, model_type: str, reason: str, remedy: str = "generate with transformers itself") -> None:
        super().__init__(f"branchwise cannot run {model_type!r} exactly: {reason}. Instead: {remedy}.")


def check_supported(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModel` when the model is of a kind that cannot be exact."""
    config = model.config
    name = getattr(config, "model_type", None) or type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(name, "it is an encoder-decoder, whose cross-attention has no tree form here")
    if model.get_output_embeddings() is None:
        raise UnsupportedModel(name, "it has no language model head", "load it with AutoModelForCausalLM")
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(name, "it has a recurrent state, which rejected drafts would corrupt for good")
    text_config = config.get_text_config(decoder=True)
    if uses_alibi(text_config):
        raise UnsupportedModel(name, "its ALiBi biases are built from slots, not from the positions of tree nodes")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModel(name, "its forward takes no position_ids, so tree nodes cannot be given their positions")
    if not getattr(text_config, "is_causal", True) or getattr(text_config, "use_bidirectional_attention", False):
        raise UnsupportedModel(name, "its attention is bidirectional")
    check_eval_mode(model)
    layer_windows(model)


def check_eval_mode(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModel` when dropout may be on; asked again for every lane, since users switch modes."""
    if model.training:
        name = getattr(model.config, "model_type", None) or type(model).__name__
        raise UnsupportedModel(name, "in training mode dropout makes its output random", "call model.eval()")


def uses_alibi(text_config: object) -> bool:
    """Whether attention scores get a bias linear in the distance."""
    nested = getattr(text_config, "attn_config", None)
    return bool(
        getattr(text_config, "alibi", False)
        or getattr(nested, "alibi", False)
        or getattr(text_config, "model_type", "") == "bloom"  # always, without saying so in its config
        or getattr(text_config, "position_embedding_type", "") == "alibi"
    )


def layer_windows(model: PreTrainedModel) -> list[int | None]:
    """Sliding window of every decoder layer, None for full attention, as transformers' own cache sees the config.

    Raises:
        UnsupportedModel: a layer keeps something other than keys and values of single tokens.
    """
    config = model.config
    name = getattr(config, "model_type", type(model).__name__)
    text_config = config.get_text_config(decoder=True)
    kinds = set(getattr(text_config, "layer_types", None) or ())
    if "chunked_attention" in kinds or getattr(text_config, "attention_chunk_size", None) is not None:
        raise UnsupportedModel(name, "its chunked attention has no tree form here")
    windows: list[int | None] = []
    for index, layer in enumerate(DynamicCache(config=config).layers):
        if type(layer) is DynamicLayer:
            windows.append(None)
        elif type(layer) is DynamicSlidingWindowLayer:
            windows.append(int(layer.sliding_window))
        else:
            raise UnsupportedModel(
                name,
                f"layer {index} keeps its past in a {type(layer).__name__}, which holds more than rows of keys and "
                "values (a recurrent state, a shared or an indexed cache)",
            )
    if not windows:
        raise UnsupportedModel(name, "transformers gives it no cache of keys and values")
    return windows


def context_limit(model: PreTrainedModel) -> int | None:
    """Tokens the model's positions reach, or None when nothing bounds them (dynamically scaled rotary embeddings)."""
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    if isinstance(rope, dict) and "dynamic" in str(rope.get("rope_type", "")):
        return None
    return getattr(config, "max_position_embeddings", None)
