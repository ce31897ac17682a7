"""The block head: a few decoder layers that draft a whole block of tokens in one forward.

Knows tensors, layers and positions. Does not know lanes, trees or the target; embeddings come from outside, and so does
whatever turns hidden states into logits. Nothing here needs a loop: it is trained and run by the same two calls.

The architecture is that of DFlash (2026; JetSpec, 2026, is its causal form): decoder layers like those of Qwen3. Their
keys and values are those of the text so far, made from the target's hidden states, followed by those of the block:

    features [C, L * h]  --fc, hidden_norm-->  context [C, h]  --k_proj, v_proj of every layer-->  rows, kept
    embeddings [Q, h] of (last token, mask, mask, ...)  --layers over (rows | block)-->  hidden states [Q, h]

The context rows of a layer depend on nothing but the features, so they are computed once per token and kept.

Letters: B batch, C context rows, Q block rows, H query heads, K key and value heads, D width of a head, h hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers.cache_utils import Cache

from .block_config import BlockHeadConfig
from .head_rotary import HeadRotary, Turn


class BlockHead(nn.Module):
    """A head that reads a block and the target's hidden states before it.

    Parameters have the names of the published checkpoints. ``embed_tokens`` and ``lm_head`` exist only where the config
    says that the head brings its own.

    To train, remember a whole text's features in a fresh `transformers.DynamicCache` and run the blocks of any number
    of anchors as one row of queries, ``visible`` keeping each to its own past and its own block. Gradients flow through
    both calls.
    """

    def __init__(self, config: BlockHeadConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.feature_layers) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, config.eps)
        self.layers = nn.ModuleList(BlockLayer(config, index) for index in range(config.layers))
        self.norm = nn.RMSNorm(hidden, config.eps)
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if config.own_embedding else None
        self.lm_head = (
            nn.Linear(hidden, config.draft_vocab_size, bias=False) if config.draft_vocab_size is not None else None
        )
        self._rotary = HeadRotary(config)

    def remember(self, features: Tensor, positions: Tensor, cache: Cache) -> None:
        """Adds the context rows of C tokens to every layer of ``cache``.

        Args:
            features: ``[B, C, L * h]``, the hidden states of `BlockHeadConfig.feature_layers` side by side.
            positions: ``[B, C]`` positions of their tokens in the text.
            cache: anything with the ``update`` of a transformers cache.
        """
        context = self.hidden_norm(self.fc(features))  # [B, C, h]
        turn = self._rotary(positions, context.dtype)
        for layer in self.layers:
            assert isinstance(layer, BlockLayer)
            cache.update(*layer.self_attn.rows(context, turn), layer.self_attn.index)

    def forward(self, embeddings: Tensor, positions: Tensor, cache: Cache, visible: Tensor) -> Tensor:
        """Hidden states ``[B, Q, h]`` of the block, after the final norm.

        Args:
            embeddings: ``[B, Q, h]`` of the last token and the mask tokens.
            positions: ``[B, Q]``.
            cache: holds the context; the block's rows are added to it, and taking them back is the caller's business.
            visible: bool ``[B or 1, Q, T]``, which of the T rows in the cache, the block's own last, each position
                sees.
        """
        turn = self._rotary(positions, embeddings.dtype)
        hidden = embeddings
        for layer in self.layers:
            hidden = layer(hidden, turn, cache, visible)
        return self.norm(hidden)


class BlockLayer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: BlockHeadConfig, index: int) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config, index)
        self.mlp = GatedMlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.eps)

    def forward(self, hidden: Tensor, turn: Turn, cache: Cache, visible: Tensor) -> Tensor:
        """``[B, Q, h]`` to the same."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), turn, cache, visible)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class BlockAttention(nn.Module):
    """Attention of the block over context and block. Context rows skip the layer's input norm."""

    def __init__(self, config: BlockHeadConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.head_dim = config.head_dim
        self.kv_heads = config.kv_heads
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, config.heads * config.head_dim, bias)
        self.k_proj = nn.Linear(hidden, config.kv_heads * config.head_dim, bias)
        self.v_proj = nn.Linear(hidden, config.kv_heads * config.head_dim, bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, hidden, bias)
        self.q_norm = nn.RMSNorm(config.head_dim, config.eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.eps)

    def rows(self, inputs: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Keys and values ``[B, K, N, D]`` of inputs ``[B, N, h]``."""
        keys = turn(self.k_norm(self._by_head(self.k_proj(inputs))))
        return keys, self._by_head(self.v_proj(inputs))

    def forward(self, inputs: Tensor, turn: Turn, cache: Cache, visible: Tensor) -> Tensor:
        """``[B, Q, h]`` to the same."""
        query = turn(self.q_norm(self._by_head(self.q_proj(inputs))))  # [B, H, Q, D]
        keys, values = cache.update(*self.rows(inputs, turn), self.index)  # [B, K, T, D]
        batch, heads, width, _ = query.shape
        # the G query heads of one key head go into the query axis, so that keys and values are read once
        group = heads // self.kv_heads
        folded = query.reshape(batch, self.kv_heads, group * width, self.head_dim)
        mask = visible.repeat(1, group, 1)[:, None]  # [B or 1, 1, G * Q, T]
        mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=mask)  # [B, K, G * Q, D]
        mixed = mixed.reshape(batch, heads, width, self.head_dim).transpose(1, 2)  # [B, Q, H, D]
        return self.o_proj(mixed.flatten(2))

    def _by_head(self, projected: Tensor) -> Tensor:
        """``[B, N, heads * D]`` to ``[B, heads, N, D]``."""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GatedMlp(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """``[..., h]`` to the same."""
        return self.down_proj(silu(self.gate_proj(inputs)) * self.up_proj(inputs))
