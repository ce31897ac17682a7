"""Training a block head (DFlash 2026; causal: JetSpec 2026): masked blocks at random anchors of whole texts.

A block begins with the last committed token, at the anchor a, and goes on with mask tokens; position j of it learns
what the target says after x[a + j - 1], which on average over texts is the law of the token j places ahead. Blocks of
many anchors run side by side, each seeing the target's features before its own anchor and nothing of other blocks:

    anchor 2, block size 3, four features, anchors 2 and 3 side by side
                        features    block of 2   block of 3
    x[2]                1 1 . .     1 1 1        . . .          causal:  1 . .
    mask, says x[3]     1 1 . .     1 1 1        . . .                   1 1 .
    mask, says x[4]     1 1 . .     1 1 1        . . .                   1 1 1
    x[3]                1 1 1 .     . . .        1 1 1
    ...

Knows batches and the head's network; the target's embeddings and output layer serve the head and are not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear
from transformers import DynamicCache, PreTrainedModel

from ..draft.block_config import BlockHeadConfig
from ..draft.block_head import BlockHead
from .batches import Batch
from .draft_vocabulary import DraftVocabulary
from .eagle3 import rope_of
from .initial import seeded, start_norm
from .method import Group, Losses, decayed, save_weights
from .shards import ANSWER
from .soft_loss import weighted_loss
from .target_head import TargetHead


@dataclass(frozen=True)
class BlockOptions:
    """What may be chosen.

    Attributes:
        layers: decoder layers of the head.
        block_size: positions of a block; one less is drafted.
        causal: positions of a block see only earlier ones of it.
        anchors: blocks per text.
        mask_token: whose embedding stands for what is to be drafted; None: the padding token, or the last of all.
    """

    layers: int = 2
    block_size: int = 8
    causal: bool = False
    anchors: int = 32
    mask_token: int | None = None

    def __post_init__(self) -> None:
        if self.anchors < 1:
            raise ValueError(f"a block head is trained on anchors >= 1 per text, got {self.anchors}")


class BlockMethod:
    """See the module.

    Args:
        model: the target; only read.
        vocabulary: all of the target's, whose output layer the head uses.
        options: see there.
        seed: of the initial weights and the anchors.
    """

    name = "block"

    def __init__(
        self, model: PreTrainedModel, vocabulary: DraftVocabulary, options: BlockOptions, seed: int = 0
    ) -> None:
        vocabulary.require_full(self.name)
        self._model = model
        self._options = options
        self._seed = seed
        self.config = block_config(model, options)
        self.depths = options.block_size - 1
        self.feature_layers = self.config.feature_layers
        self._target = TargetHead(model, torch.from_numpy(vocabulary.ids))
        with seeded(seed):
            self.module = BlockHead(self.config)
        start_norm(self.module.norm, model)
        device = model.get_input_embeddings().weight.device
        self.module.to(device)
        # the output layer takes part in the forward, but only the head's own weights learn
        self._output = self._target.weight.float()
        self._bias = None if self._target.bias is None else self._target.bias.float()

    def groups(self) -> Sequence[Group]:
        """See `Method.groups`."""
        return decayed(list(self.module.parameters()))

    def losses(self, batch: Batch) -> Losses:
        """See `Method.losses`; positions count less the further ahead they are (DFlash)."""
        anchors = self._anchors(batch)  # [B, A]
        hidden = self._run(batch, anchors)  # [B, A, S, h]
        total = torch.zeros((), device=hidden.device)
        by_depth = []
        final = batch.features[:, :, -1]
        for ahead in range(1, self.depths + 1):
            said, there = self._at(batch.tokens, anchors + ahead), anchors + ahead < batch.tokens.shape[1]
            weights = self._at(batch.weights, anchors + ahead) * there * (self._target.row_of[said] >= 0)
            chosen = weights > 0
            logits = self._logits(hidden[:, :, ahead][chosen])  # [n, D]
            asked = self._target.logits(self._at(final, anchors + ahead - 1)[chosen])  # [n, D]
            loss = weighted_loss(logits, asked, weights[chosen])
            total = total + self._depth_weight(ahead) * loss
            by_depth.append(float(loss.detach()))
        return Losses(total, tuple(by_depth))

    @torch.no_grad()
    def hits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Method.hits`; every anchor of an answer, a few at a time."""
        assert len(batch.tokens) == 1, "texts are measured one by one"
        length = batch.tokens.shape[1]
        places = (batch.roles[0, 1:] == ANSWER).nonzero()[:, 0]
        hits, exists = [], []
        for anchors in places.split(self._options.anchors):
            hidden = self._run(batch, anchors[None])[0]  # [A, S, h]
            best = self._target.ids[self._logits(hidden[:, 1:]).argmax(dim=-1)]  # [A, S - 1]
            ahead = anchors[:, None] + torch.arange(1, self.depths + 1, device=anchors.device)
            inside = ahead < length
            ahead = ahead.clamp(max=length - 1)
            hits.append((best == batch.tokens[0, ahead]) & inside)
            exists.append((batch.roles[0, ahead] == ANSWER) & inside)
        if not hits:
            empty = torch.zeros(0, self.depths, dtype=torch.bool, device=batch.tokens.device)
            return empty, empty
        return torch.cat(hits), torch.cat(exists)

    def export(self, folder: Path) -> None:
        """Writes the head in the layout of DFlash and JetSpec."""
        dtype = self._model.dtype if self._model.dtype in (torch.bfloat16, torch.float16) else torch.float32
        tensors = {name: value.to(dtype) for name, value in self.module.state_dict().items()}
        save_weights(folder, block_config_file(self.config, dtype), tensors)

    def _run(self, batch: Batch, anchors: Tensor) -> Tensor:
        """Hidden states ``[B, A, S, h]`` of a block at every anchor ``[B, A]``."""
        rows, count = anchors.shape
        size, device = self._options.block_size, anchors.device
        length = batch.tokens.shape[1]
        cache = DynamicCache()
        positions = torch.arange(length, device=device).expand(rows, -1)
        self.module.remember(batch.features[:, :, :-1].flatten(2), positions, cache)
        block = torch.full((rows, count, size), self.config.mask_token_id, device=device)
        block[:, :, 0] = self._at(batch.tokens, anchors)
        inputs = embedding(block.flatten(1), self._model.get_input_embeddings().weight.detach())
        places = (anchors[:, :, None] + torch.arange(size, device=device)).flatten(1)  # [B, A * S]
        visible = self._visible(anchors, length)
        hidden = self.module(inputs.to(batch.features.dtype), places, cache, visible)
        return hidden.unflatten(1, (count, size))

    def _visible(self, anchors: Tensor, length: int) -> Tensor:
        """Bool ``[B, A * S, L + A * S]``: features before the own anchor, then the own block."""
        rows, count = anchors.shape
        size = self._options.block_size
        before = torch.arange(length, device=anchors.device) < anchors.repeat_interleave(size, dim=1)[:, :, None]
        inside = torch.ones(size, size, dtype=torch.bool, device=anchors.device)
        own = torch.block_diag(*[inside.tril() if self._options.causal else inside] * count)
        return torch.cat((before, own.expand(rows, -1, -1)), dim=2)

    def _anchors(self, batch: Batch) -> Tensor:
        """Places ``[B, A]`` whose next token somebody wrote, drawn anew for every step."""
        chance = torch.Generator().manual_seed(self._seed * 1_000_003 + batch.number)
        weights = batch.weights[:, 1:].cpu() + 1e-9  # a text without any draws anywhere, and counts nothing
        weights = weights * (torch.arange(1, batch.tokens.shape[1]) < torch.tensor(batch.lengths)[:, None])
        count = min(self._options.anchors, weights.shape[1])
        drawn = torch.multinomial(weights, count, generator=chance, replacement=True)
        return drawn.to(batch.tokens.device)

    def _depth_weight(self, ahead: int) -> float:
        return float(torch.exp(torch.tensor(-(ahead - 1) / (self._options.block_size / 2))))

    def _logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self._output, self._bias)

    @staticmethod
    def _at(values: Tensor, places: Tensor) -> Tensor:
        """``values`` ``[B, L, ...]`` at ``places`` ``[B, A]``; beyond the end, the last."""
        places = places.clamp(max=values.shape[1] - 1)
        return values[torch.arange(len(values), device=values.device)[:, None], places]


def block_config(model: PreTrainedModel, options: BlockOptions) -> BlockHeadConfig:
    """A head of the target's own widths that reads features spread over its depth."""
    text = model.config.get_text_config()
    heads, layers = int(text.num_attention_heads), int(text.num_hidden_layers)
    # as published heads do: five hidden states from an early to a late layer
    count = min(5, layers)
    spread = torch.linspace(min(2, layers), max(layers - 2, 1), count).round().int().tolist()
    embeddings = model.get_input_embeddings().weight.shape[0]
    mask = options.mask_token
    if mask is None:
        mask = text.pad_token_id if isinstance(text.pad_token_id, int) and text.pad_token_id >= 0 else embeddings - 1
    if not 0 <= mask < embeddings:
        raise ValueError(f"the mask token must be one of the target's {embeddings}, got {mask}")
    return BlockHeadConfig(
        hidden_size=int(text.hidden_size),
        intermediate_size=int(text.intermediate_size),
        layers=options.layers,
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        feature_layers=tuple(sorted(set(spread))),
        block_size=options.block_size,
        mask_token_id=mask,
        vocab_size=int(model.get_output_embeddings().out_features),
        causal=options.causal,
        eps=float(getattr(text, "rms_norm_eps", 1e-6)),
        rope=rope_of(text),
        max_positions=int(getattr(text, "max_position_embeddings", 32768)),
        target_layers=layers,
    )


def block_config_file(config: BlockHeadConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The head's ``config.json`` as DFlash and JetSpec write it."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "attention_bias": config.attention_bias,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rope_parameters": dict(config.rope),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "block_size": config.block_size,
        "num_target_layers": config.target_layers,
        "dflash_config": {
            "target_layer_ids": [layer - 1 for layer in config.feature_layers],
            "mask_token_id": config.mask_token_id,
            "causal_head": config.causal,
            "target_hidden_size": config.hidden_size,
        },
    }
