"""What the config of a block head says: sizes, which hidden states of the target it reads, and how its block runs.

Knows the two published layouts of DFlash heads: the original one, which JetSpec shares, and that of the speculators
library. What it cannot honour it refuses by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .head_config import HeadCheckpointError, HeadConfig
from .head_rotary import read_rope

#: keys of the speculators layout that only training reads, storing writes, or another projector has a use for
SPECULATORS_IGNORED = frozenset(
    {
        "auf",
        "emb_dim",
        "embed_requires_grad",
        "enable_sp_ulysses",
        "gru_hidden_dim",
        "has_no_defaults_at_init",
        "lambda_base_decay_ratio",
        "lambda_base_start",
        "model_type",
        "pure_draft_prefix_len",
        "sliding_window_non_causal",  # no layer slides
        "speculators_version",
    }
)


@dataclass(frozen=True)
class BlockHeadConfig:
    """Sizes and options of a block head.

    Attributes:
        hidden_size: h, of the head and of the target.
        intermediate_size: width of the MLPs.
        layers: decoder layers.
        heads: query heads H.
        kv_heads: key and value heads K.
        head_dim: D.
        feature_layers: hidden states of the target that the head reads, numbered as in `TargetOutput.features`.
        block_size: positions of a block; the first is the last committed token, the others are drafted.
        mask_token_id: token whose embedding stands for what is to be drafted.
        vocab_size: of the target.
        causal: whether a block position sees only earlier ones of its block (JetSpec) or all (DFlash).
        attention_bias: whether the projections of the attention have biases.
        eps: of the root-mean-square norms.
        rope: rotary parameters, as transformers' ``rope_parameters``.
        max_positions: longest text the head was made for; only some rotary types use it.
        draft_vocab_size: tokens the head's own output layer knows, None for the target's output layer.
        own_embedding: whether the head brings its own input embeddings.
        target_layers: decoder layers of the target, if recorded.
        target_name: name of the target, if recorded.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feature_layers: tuple[int, ...]
    block_size: int
    mask_token_id: int
    vocab_size: int
    causal: bool = False
    attention_bias: bool = False
    eps: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    max_positions: int = 32768
    draft_vocab_size: int | None = None
    own_embedding: bool = False
    target_layers: int | None = None
    target_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"a block head needs {name} >= 1, got {getattr(self, name)}")
        if self.block_size < 2:
            raise ValueError(f"a block head needs block_size >= 2 (one token and one to draft), got {self.block_size}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads do not share {self.kv_heads} key and value heads evenly")
        if not self.feature_layers or min(self.feature_layers) < 0:
            raise ValueError(f"a block head reads hidden states numbered >= 0, got {list(self.feature_layers)}")
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, got {self.head_dim}")


def read_block_config(config: HeadConfig, *, own_embedding: bool = False, own_head: bool = False) -> BlockHeadConfig:
    """The config of a head in either published layout.

    Args:
        config: the head's ``config.json``.
        own_embedding: whether the checkpoint holds ``embed_tokens.weight``.
        own_head: whether the checkpoint holds ``lm_head.weight``.

    Raises:
        HeadCheckpointError: a key is missing, or set to what is not honoured; names both.
    """
    read = _read_speculators if "speculators_model_type" in config else _read_dflash
    try:
        return read(config, own_embedding, own_head)
    except HeadCheckpointError:
        raise
    except ValueError as error:
        raise HeadCheckpointError(f"{config.where}: {error}") from error


def _read_dflash(config: HeadConfig, own_embedding: bool, own_head: bool) -> BlockHeadConfig:
    """The layout of DFlash and JetSpec: a Qwen3 config with a few more keys, some of them under ``dflash_config``."""
    nested = config.nested("dflash_config", {})
    decoder = _read_decoder(config)
    layers = _integers(config, "target_layer_ids", _from_either(config, nested, "target_layer_ids", list))
    causal = [
        nested.take("causal_head", bool, False),
        nested.take("causal", bool, False),
        config.take("is_causal", bool, False),
    ]
    nested.require("projector_type", "dflash", "dflash")
    nested.require("target_hidden_size", decoder["hidden_size"], decoder["hidden_size"])
    head = BlockHeadConfig(
        **decoder,
        feature_layers=tuple(layer + 1 for layer in layers),  # the output of layer i is the input of layer i + 1
        block_size=_from_either(config, nested, "block_size", int),
        mask_token_id=_from_either(config, nested, "mask_token_id", int),
        causal=any(causal),
        draft_vocab_size=decoder["vocab_size"] if own_head else None,
        own_embedding=own_embedding,
        target_layers=_from_either(config, nested, "num_target_layers", int, None),
    )
    nested.finish()
    config.finish()
    return head


def _read_speculators(config: HeadConfig, own_embedding: bool, own_head: bool) -> BlockHeadConfig:
    """The layout of the speculators library: the decoder's config in an object of its own, hidden states by number."""
    config.require("speculators_model_type", "dflash")
    config.require("projector_type", "dflash", "dflash")
    config.require("sample_from_anchor", False, False)
    config.require("shift_label", False, False)
    transformer = config.nested("transformer_layer_config")
    decoder = _read_decoder(transformer)
    config.require("target_hidden_size", decoder["hidden_size"], decoder["hidden_size"])
    draft_vocab_size = config.take("draft_vocab_size", int, decoder["vocab_size"])
    speculators = config.nested("speculators_config", {})
    verifier = speculators.nested("verifier", {})
    head = BlockHeadConfig(
        **decoder,
        feature_layers=_integers(config, "aux_hidden_state_layer_ids", config.take("aux_hidden_state_layer_ids", list)),
        block_size=config.take("block_size", int),
        mask_token_id=config.take("mask_token_id", int),
        draft_vocab_size=draft_vocab_size if own_head or draft_vocab_size != decoder["vocab_size"] else None,
        own_embedding=own_embedding,
        target_name=verifier.take("name_or_path", str, None),
    )
    transformer.finish()
    verifier.finish()
    # how many tokens to propose is the budget's business here
    speculators.finish(ignored={"algorithm", "proposal_methods", "default_proposal_method"})
    config.finish(ignored=SPECULATORS_IGNORED)
    return head


def _read_decoder(config: HeadConfig) -> dict[str, Any]:
    """What both layouts say in the words of a Qwen3 config."""
    if config.take("model_type", str, "qwen3") not in ("qwen3", "llama"):  # the layers are the same whatever it says
        config.require("model_type", "qwen3")
    config.require("mlp_bias", False, False)
    config.require("hidden_act", "silu", "silu")
    config.require("use_sliding_window", False, False)
    config.take("sliding_window", int, None)  # no layer slides, so neither says anything
    config.take("max_window_layers", int, None)
    config.take("tie_word_embeddings", bool, None)  # there is nothing to tie
    layers = config.take("num_hidden_layers", int)
    config.require("layer_types", ["full_attention"] * layers, ["full_attention"] * layers)
    hidden_size, heads = config.take("hidden_size", int), config.take("num_attention_heads", int)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.take("intermediate_size", int),
        "layers": layers,
        "heads": heads,
        "kv_heads": config.take("num_key_value_heads", int, heads),
        "head_dim": config.take("head_dim", int, hidden_size // max(1, heads)),
        "vocab_size": config.take("vocab_size", int),
        "attention_bias": config.take("attention_bias", bool, False),
        "eps": config.take("rms_norm_eps", float, 1e-6),
        "rope": read_rope(config),
        "max_positions": config.take("max_position_embeddings", int, 32768),
    }


_MISSING = object()


def _from_either(config: HeadConfig, nested: HeadConfig, key: str, kind: type, default: Any = _MISSING) -> Any:
    """A key that some heads have at the top and others under ``dflash_config``."""
    top, inner = config.take(key, kind, None), nested.take(key, kind, None)
    if top is not None and inner is not None and top != inner:
        raise HeadCheckpointError(f"{config.where} has {key!r} twice, {top!r} and {inner!r}; leave one of them out")
    value = inner if top is None else top
    if value is None and default is _MISSING:
        raise HeadCheckpointError(f"{config.where} lacks the key {key!r}: a block head cannot be built without it")
    return default if value is None else value


def _integers(config: HeadConfig, key: str, values: list[Any]) -> tuple[int, ...]:
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise HeadCheckpointError(f"{config.where} has {key!r} = {values!r}, which must be a list of integers")
    return tuple(values)
