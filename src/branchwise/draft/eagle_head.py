"""The network of an EAGLE head: one decoder layer that reads the target's hidden states and continues them itself.

Knows its layers. Does not know caches, trees or masks: who attends to whom is decided by the ``attend`` function it is
given, so that the same forward drafts trees and is trained on whole sequences.

At position t a head sees the hidden states that the target computed at t and the token that came out, t + 1; its output
stands in for the target's own hidden states at t + 1, where its next step begins:

    position          t                      t + 1
    features          of the target, at t    the head's own output at t
    embedding of      token t + 1            token t + 2, drafted from that output

Sources: EAGLE (Li et al. 2024a), EAGLE-2 (2024b, the same heads), EAGLE-3 (2025).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .eagle_config import EagleConfig
from .head_rotary import HeadRotary, Turn

#: layer number, queries ``[B, H, N, D]``, keys and values ``[B, K, N, D]`` of the new rows -> ``[B, H, N, D]``
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class EagleHead(nn.Module):
    """A head as its config describes it. Parameters are named as in speculators' layout.

    Args:
        config: the head.
        feature_layers: hidden states of the target that it reads, in the order ``fc`` expects.
    """

    def __init__(self, config: EagleConfig, feature_layers: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.feature_layers = feature_layers
        h, eps = config.hidden_size, config.norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, h) if config.own_embeddings else None
        self.fc = nn.Linear(2 * h if config.version == 1 else self.feature_width, h, bias=config.fc_bias)
        self.layers = nn.ModuleList(HeadLayer(config, index) for index in range(config.layers))
        self.input_norm = nn.RMSNorm(self.feature_width, eps) if config.norm_concatenated else None
        self.fc_norm = None
        if config.norm_each:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(config.target_hidden_size, eps) for _ in feature_layers)
        self.embedding_residual = nn.Linear(h, h, bias=False) if config.embedding_residual else None
        self.norm = nn.RMSNorm(h, eps) if config.version == 3 else None
        self.lm_head = nn.Linear(h, config.draft_vocab_size, bias=False) if config.own_output else None
        self.rotary = HeadRotary(config)
        #: target token of every row of the output layer, int64 ``[draft vocabulary]``; None: they are the same
        self.target_ids: Tensor | None
        self.register_buffer("target_ids", None, persistent=False)
        self._embedding: Tensor | None = None
        self._output: tuple[Tensor, Tensor | None] | None = None

    @property
    def feature_width(self) -> int:
        """Numbers per token that the target gives: F * h_t."""
        return self.config.features * self.config.target_hidden_size

    def borrow(self, embedding: Tensor | None, output: tuple[Tensor, Tensor | None] | None) -> None:
        """Uses weights of the target where the head has none of its own; they are neither changed nor saved.

        Args:
            embedding: ``[V, h]``.
            output: weight ``[V, h]`` and bias ``[V]`` or None.
        """
        self._embedding, self._output = embedding, output

    @property
    def embedding(self) -> Tensor:
        """Of target tokens: ``[V, h]``."""
        weight = self.embed_tokens.weight if self.embed_tokens is not None else self._embedding
        assert weight is not None, "a head without embeddings must borrow the target's"
        return weight

    @property
    def output(self) -> tuple[Tensor, Tensor | None]:
        """The output layer: weight ``[draft vocabulary, h]`` and bias."""
        if self.lm_head is not None:
            return self.lm_head.weight, None
        if self.config.tied_output and self.embed_tokens is not None:
            return self.embed_tokens.weight, None
        assert self._output is not None, "a head without an output layer must borrow the target's"
        return self._output

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[..., h]`` of target tokens ``[...]``."""
        return functional.embedding(tokens, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """Hidden states of the target ``[..., F * h_t]`` to the head's own width ``[..., h]``."""
        if self.config.version == 1:
            return features
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.split(self.config.target_hidden_size, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features)

    def forward(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """One step at every position.

        Args:
            embeddings: ``[B, N, h]`` of the tokens at the positions after, see `embed`.
            hidden: ``[B, N, h]``, from `fuse` or from the step before.
            positions: ``[B, N]``, of the features.
            attend: see `Attend`.
            rows: int64 ``[R]``, those of the N positions that are asked for; the last layer computes no more than keys
                and values of the others. None: all of them.

        Returns:
            ``[B, N or R, h]``: what the next step takes as ``hidden``, and `logits` as input.
        """
        turn = self.rotary(positions, hidden.dtype)
        if self.config.version == 1:
            hidden = self.fc(torch.cat((embeddings, hidden), dim=-1))
        for layer in self.layers:
            hidden = layer(embeddings, hidden, turn, attend, rows if layer is self.layers[-1] else None)
        if self.embedding_residual is not None:
            hidden = hidden + self.embedding_residual(_some(embeddings, rows))
        return self.norm(hidden) if self.norm is not None and self.config.norm_output else hidden

    def choices(self, level: int) -> int:
        """Rows of the output layer that the nodes of a level are chosen from; 0 is the root's children."""
        deep = self.config.deep_draft_vocab_size
        return len(self.output[0]) if level == 0 or deep is None else deep

    def logits(self, hidden: Tensor, level: int = 0) -> Tensor:
        """Of the tokens two positions after the features: ``[..., h]`` to ``[..., choices(level)]``."""
        if self.norm is not None and not self.config.norm_output:
            hidden = self.norm(hidden)
        weight, bias = self.output
        count = self.choices(level)
        return functional.linear(hidden, weight[:count], None if bias is None else bias[:count])


class HeadLayer(nn.Module):
    """A Llama-like decoder layer; the first one of an EAGLE-3 head also reads the embeddings."""

    def __init__(self, config: EagleConfig, index: int) -> None:
        super().__init__()
        h, eps = config.hidden_size, config.norm_eps
        self.index = index
        self.reads_embeddings = config.version == 3 and index == 0
        self.norm_before_residual = config.norm_before_residual
        self.self_attn = HeadAttention(config, 2 * h if self.reads_embeddings else h)
        # in EAGLE-1 the output of fc enters the first layer as it is
        self.input_layernorm = nn.RMSNorm(h, eps) if config.version == 3 or index > 0 else None
        self.hidden_norm = nn.RMSNorm(h, eps) if self.reads_embeddings else None
        self.post_attention_layernorm = nn.RMSNorm(h, eps)
        self.mlp = HeadMlp(config)

    def forward(
        self, embeddings: Tensor, hidden: Tensor, turn: Turn, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """``[B, N, h]`` to ``[B, N, h]``, or to ``[B, R, h]`` at some rows alone."""
        inputs = hidden
        if self.hidden_norm is not None and self.input_layernorm is not None:
            normed = self.hidden_norm(hidden)
            inputs = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)  # [B, N, 2h]
            hidden = normed if self.norm_before_residual else hidden
        elif self.input_layernorm is not None:
            inputs = self.input_layernorm(hidden)
        mixed = self.self_attn(inputs, turn, lambda q, k, v: attend(self.index, q, k, v), rows)
        hidden = _some(hidden, rows) + mixed
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class HeadAttention(nn.Module):
    """Projections and rotary positions; the attention itself is the caller's."""

    def __init__(self, config: EagleConfig, width: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(width, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(width, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(width, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.output_bias)
        self.q_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None

    def forward(
        self,
        inputs: Tensor,
        turn: Turn,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
        rows: Tensor | None = None,
    ) -> Tensor:
        """``[B, N, width]`` to ``[B, N, h]``, or to ``[B, R, h]`` at some rows alone."""
        query, key, value = (
            projection(read).unflatten(-1, (-1, self.head_dim))  # [B, N or R, H or K, D]
            for projection, read in (
                (self.q_proj, _some(inputs, rows)),
                (self.k_proj, inputs),
                (self.v_proj, inputs),
            )
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # [B, H or K, N, D]
        turned = (turn if rows is None else turn.at(rows))(query)
        mixed = attend(turned, turn(key), value)  # [B, H, N or R, D]
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class HeadMlp(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        h, wide = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(h, wide, bias=config.mlp_bias)
        self.up_proj = nn.Linear(h, wide, bias=config.mlp_bias)
        self.down_proj = nn.Linear(wide, h, bias=config.mlp_bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """``[B, N, h]`` to ``[B, N, h]``."""
        return self.down_proj(functional.silu(self.gate_proj(inputs)) * self.up_proj(inputs))


def _some(values: Tensor, rows: Tensor | None) -> Tensor:
    """Rows ``[B, R, ...]`` of ``[B, N, ...]``, or all."""
    return values if rows is None else values[:, rows]
