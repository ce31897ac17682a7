"""What an EAGLE head looks like, read from the configs that published heads come with.

Knows the keys of three layouts: EAGLE-1 and 2 (one layout), EAGLE-3 as its authors and SpecForge write it, and EAGLE-3
as speculators writes it. Does not know weights. A key that changes the computation and is not honoured is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checkpoint import HeadCheckpoint
from .head_config import HeadCheckpointError, HeadConfig
from .head_rotary import read_rope
from .head_target import RecordedTarget

#: model types whose decoder layer is Llama's as far as a head is concerned (biases have keys of their own)
LLAMA_LIKE = ("llama", "mistral", "qwen2")
#: the same with normalised queries and keys
QWEN3_LIKE = ("qwen3",)
#: keys of speculators that say how a head was or is to be trained or stored
_TRAINING = ("embed_requires_grad", "enable_sp_ulysses", "has_no_defaults_at_init", "speculators_version")
#: feature inputs of an EAGLE-3 head
_FEATURES = 3


@dataclass(frozen=True)
class EagleConfig:
    """One head. Letters: h its hidden size, h_t the target's, F feature layers.

    Attributes:
        version: 1 (EAGLE-1 and 2) or 3.
        hidden_size: h.
        target_hidden_size: h_t.
        intermediate_size: width of the feed-forward part.
        heads, kv_heads, head_dim: of the attention.
        layers: decoder layers, almost always one.
        norm_eps: of all norms.
        vocab_size: of the target.
        draft_vocab_size: rows of the output layer.
        deep_draft_vocab_size: how many of them, from the first on, levels below the first choose from; None: all (this
            project's own addition, as rows in order of usefulness are).
        rope: rotary parameters as transformers names them.
        max_positions: positions the head was made for; some rotary scalings need it.
        feature_layers: the target's hidden states it reads, as numbered in `TargetOutput.features`; None: the default.
        features: F.
        qkv_bias, output_bias, mlp_bias, fc_bias: which linear layers have biases.
        qk_norm: queries and keys are normalised per head.
        own_embeddings, own_output: False where the target's are used.
        tied_output: the output layer is the head's embedding.
        norm_before_residual: the residual is taken after ``hidden_norm``, not before.
        norm_concatenated: one norm over all features together before ``fc`` (speculators' ``norm_before_fc``).
        norm_each: one norm per feature before ``fc`` (``fc_norm``, from EAGLE-3.1).
        norm_output: the normalised output, not the raw one, is the next step's input (EAGLE-3.1).
        embedding_residual: a projection of the embedding joins the residual (this project's own addition).
        target: what is recorded about the target.
        architectures: names of target classes, if recorded.
    """

    version: int
    hidden_size: int
    intermediate_size: int
    heads: int
    vocab_size: int
    kv_heads: int
    head_dim: int
    target_hidden_size: int
    draft_vocab_size: int
    deep_draft_vocab_size: int | None = None
    layers: int = 1
    norm_eps: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    max_positions: int = 2048
    feature_layers: tuple[int, ...] | None = None
    features: int = 1
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    qk_norm: bool = False
    own_embeddings: bool = False
    own_output: bool = False
    tied_output: bool = False
    norm_before_residual: bool = False
    norm_concatenated: bool = False
    norm_each: bool = False
    norm_output: bool = False
    embedding_residual: bool = False
    target: RecordedTarget = field(default_factory=RecordedTarget)
    architectures: tuple[str, ...] = ()


def read_eagle_config(checkpoint: HeadCheckpoint) -> EagleConfig:
    """The head of a checkpoint; which layout it has is told by its keys and tensors.

    Raises:
        HeadCheckpointError: a key is missing, of the wrong type, or not honoured.
    """
    config = checkpoint.config
    if "speculators_model_type" in config:
        values = _speculators(config, checkpoint)
    elif "draft_vocab_size" in config or "norm.weight" in checkpoint:
        values = _eagle3(config, checkpoint)
    else:
        values = _eagle1(config, checkpoint)
    config.finish()
    return EagleConfig(**values)


def _eagle1(config: HeadConfig, checkpoint: HeadCheckpoint) -> dict[str, Any]:
    values = _layer(config)
    hidden_size, vocab_size = values["hidden_size"], values["vocab_size"]
    config.take("tie_word_embeddings", bool, False)  # copied from the target, whose output layer is used either way
    return values | {
        "version": 1,
        "target_hidden_size": hidden_size,
        "draft_vocab_size": vocab_size,
        # the authors' code takes an absent key for True, their later heads have neither key nor bias
        "fc_bias": config.take("bias", bool, "fc.bias" in checkpoint),
        "own_embeddings": "embed_tokens.weight" in checkpoint,
        "target": RecordedTarget(hidden_size=hidden_size, vocab_size=vocab_size),
    }


def _eagle3(config: HeadConfig, checkpoint: HeadCheckpoint) -> dict[str, Any]:
    values = _layer(config)
    aux = config.nested("eagle_config", {})
    aux.require("use_aux_hidden_state", True, True)
    layers = _feature_layers(aux)
    aux.finish()
    layers = layers if layers is not None else _feature_layers(config)
    config.take("target_model_type", str, None)  # transformers' name of a family; hidden size and vocabulary say more
    return values | _common3(config, checkpoint, values, config, layers) | {"norm_before_residual": False}


def _speculators(config: HeadConfig, checkpoint: HeadCheckpoint) -> dict[str, Any]:
    config.require("speculators_model_type", "eagle3")
    serving = config.nested("speculators_config", {})
    name, architectures = _verifier(serving)
    layer = config.nested("transformer_layer_config")
    values = _layer(layer)
    layers = _feature_layers(config)
    values |= _common3(config, checkpoint, values, layer, layers)
    layer.finish()
    for key in _TRAINING:
        config.take(key, (bool, str), None)
    target: RecordedTarget = values["target"]
    return values | {
        # vLLM's reading of an absent key; speculators itself always writes it
        "norm_before_residual": config.take("norm_before_residual", bool, True),
        "target": RecordedTarget(target.hidden_size, target.vocab_size, name=name),
        "architectures": architectures,
    }


def _common3(
    config: HeadConfig,
    checkpoint: HeadCheckpoint,
    values: Mapping[str, Any],
    layer: HeadConfig,
    feature_layers: tuple[int, ...] | None,
) -> dict[str, Any]:
    """What both layouts of EAGLE-3 say in the same words."""
    target_hidden_size = config.take("target_hidden_size", int, values["hidden_size"])
    draft_vocab_size = config.take("draft_vocab_size", int, values["vocab_size"])
    deep = config.take("deep_draft_vocab_size", int, None)
    if deep is not None and not 0 < deep <= draft_vocab_size:
        raise HeadCheckpointError(
            f"{config.where} has 'deep_draft_vocab_size' = {deep}, which must be a part of the {draft_vocab_size} rows"
        )
    concatenated = config.take("norm_before_fc", bool, False)
    each = config.take("fc_norm", bool, False)
    if concatenated and each:
        raise HeadCheckpointError(f"{config.where} has both 'norm_before_fc' and 'fc_norm'; no head is known to")
    own_output = "lm_head.weight" in checkpoint
    tied = layer.take("tie_word_embeddings", bool, False) and not own_output
    if not own_output and draft_vocab_size != values["vocab_size"]:
        raise HeadCheckpointError(
            f"{checkpoint.folder.name} lacks the tensor 'lm_head.weight': with a vocabulary of its own "
            f"(draft_vocab_size {draft_vocab_size} of {values['vocab_size']}) a head cannot use another output layer"
        )
    return {
        "version": 3,
        "target_hidden_size": target_hidden_size,
        "draft_vocab_size": draft_vocab_size,
        "deep_draft_vocab_size": deep,
        "feature_layers": feature_layers,
        "features": _FEATURES if feature_layers is None else len(feature_layers),
        "own_embeddings": "embed_tokens.weight" in checkpoint,
        "own_output": own_output,
        "tied_output": tied,
        "norm_concatenated": concatenated,
        "norm_each": each,
        "norm_output": config.take("norm_output", bool, False),
        "embedding_residual": config.take("embedding_residual", bool, False),
        "target": RecordedTarget(hidden_size=target_hidden_size, vocab_size=values["vocab_size"]),
    }


def _layer(config: HeadConfig) -> dict[str, Any]:
    """The keys of a Llama-like decoder layer."""
    model_type = config.take("model_type", str, "llama")
    if model_type not in LLAMA_LIKE + QWEN3_LIKE:
        known = ", ".join(LLAMA_LIKE + QWEN3_LIKE)
        raise HeadCheckpointError(f"{config.where} has 'model_type' = {model_type!r}; layers of {known} are known")
    config.require("hidden_act", "silu", "silu")
    config.require("rope_interleaved", False, False)
    config.take("pretraining_tp", int, 1)  # cuts the same product into pieces
    _require_full_attention(config, model_type)
    hidden_size = config.take("hidden_size", int)
    heads = config.take("num_attention_heads", int)
    attention_bias = config.take("attention_bias", bool, False)
    max_positions = config.take("max_position_embeddings", int, 2048)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.take("intermediate_size", int),
        "heads": heads,
        "kv_heads": config.take("num_key_value_heads", int, heads),
        "head_dim": config.take("head_dim", int, hidden_size // heads),
        "layers": config.take("num_hidden_layers", int, 1),
        "norm_eps": float(config.take("rms_norm_eps", float, 1e-6)),
        "vocab_size": config.take("vocab_size", int),
        "rope": read_rope(config),
        "max_positions": max_positions,
        "qkv_bias": config.take("qkv_bias", bool, attention_bias),
        "output_bias": attention_bias,
        "mlp_bias": config.take("mlp_bias", bool, False),
        "qk_norm": model_type in QWEN3_LIKE,
    }


def _require_full_attention(config: HeadConfig, model_type: str) -> None:
    """A head that was made for a sliding window would need one."""
    windowed = config.take("use_sliding_window", bool, not model_type.startswith("qwen"))
    window = config.take("sliding_window", int, None)
    config.take("max_window_layers", int, None)
    kinds = set(config.take("layer_types", list, []))
    if (windowed and window is not None) or kinds - {"full_attention"}:
        raise HeadCheckpointError(
            f"{config.where} asks for sliding windows ('sliding_window' = {window!r}); only full attention is supported"
        )


def _feature_layers(config: HeadConfig) -> tuple[int, ...] | None:
    key = "eagle_aux_hidden_state_layer_ids"
    layers = config.take(key, list, None)
    if layers is None:
        return None
    if not layers or not all(isinstance(layer, int) for layer in layers):
        raise HeadCheckpointError(f"{config.where} has {key!r} = {layers!r}, which must be numbers of layers")
    return tuple(layers)


def _verifier(serving: HeadConfig) -> tuple[str | None, tuple[str, ...]]:
    """Name and classes of the target, and a check that nothing but exact, greedy drafting is asked for."""
    serving.require("algorithm", "eagle3", "eagle3")
    serving.require("default_proposal_method", "greedy", "greedy")
    for number, values in enumerate(serving.take("proposal_methods", list, [])):
        method = HeadConfig(values, f"{serving.where} ['proposal_methods'][{number}]")
        method.require("proposal_type", "greedy")
        method.take("speculative_tokens", int, None)  # a chain's length; trees have their own depth and size here
        # both would accept what the target would not have written
        method.require("accept_tolerance", 0.0, 0.0)
        method.require("verifier_accept_k", 1, 1)
        method.finish()
    verifier = serving.nested("verifier", {})
    name = verifier.take("name_or_path", str, None)
    architectures = tuple(verifier.take("architectures", list, []))
    verifier.finish()
    serving.finish()
    return name, architectures
