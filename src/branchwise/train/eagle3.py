"""Training an EAGLE-3 head as in its paper (Li et al. 2025, section 3): unrolled on its own hidden states.

The head runs `steps` times over whole sequences. Step 0 continues the target's features at every position at once; step
s continues what step s - 1 gave, as in drafting. Row i of every step belongs to one anchor: the draft that begins after
the target's features at position i.

    step s, anchor i      hidden state in     embedding of    attends to                          learns to say
    0                     target's at i       x[i + 1]        step 0 of anchors 0 .. i            x[i + 2]
    1                     step 0's at i       x[i + 2]        the same, and step 1 of i           x[i + 3]
    2                     step 1's at i       x[i + 3]        the same, and steps 1 and 2 of i    x[i + 4]

What it learns to say is the target's whole distribution, over the draft vocabulary; from step 1 on over the first part
of it, as far as deeper levels of a draft choose from that. Knows batches and the head's network; knows no files but
those it exports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from ..draft.eagle_config import EagleConfig
from ..draft.eagle_head import EagleHead
from ..draft.eagle_load import borrow_from, load_eagle_head
from ..draft.head_rotary import ROPE_TYPES
from .batches import Batch
from .draft_vocabulary import DraftVocabulary
from .initial import seeded, start_norm
from .method import Group, Losses, decayed, save_weights
from .shards import ANSWER
from .soft_loss import weighted_loss
from .target_head import TargetHead

#: what depth s counts for: its draft is only ever used when all before it were right
DEPTH_DECAY = 0.8
#: the output layer starts from the target's rows and moves less than the rest
OUTPUT_RATE = 0.2


@dataclass(frozen=True)
class Eagle3Options:
    """What may be chosen.

    Attributes:
        steps: of the unrolling.
        start: folder of a head of this target to begin from; without, from the target.
        published_only: leave out this project's additions (one norm per feature, a projection of the embedding beside
            the layer, as many key heads as query heads, fewer tokens to choose from below the first level), for
            engines that know only the paper's head.
    """

    steps: int = 3
    published_only: bool = False
    start: str = ""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"unrolling needs steps >= 1, got {self.steps}")


class Eagle3Method:
    """See the module.

    Args:
        model: the target; only read.
        vocabulary: tokens the head can draft.
        options: see there.
        seed: of the initial weights.
    """

    name = "eagle3"

    def __init__(
        self, model: PreTrainedModel, vocabulary: DraftVocabulary, options: Eagle3Options, seed: int = 0
    ) -> None:
        self.depths = options.steps
        self.feature_layers = default_feature_layers(model)
        self._vocabulary = vocabulary
        self._model = model
        ids = torch.from_numpy(vocabulary.ids)
        self._target = TargetHead(model, ids)
        config = eagle3_config(model, vocabulary, self.feature_layers, options)
        with seeded(seed):
            self.module: EagleHead = EagleHead(config, self.feature_layers)
        _start(self.module, model, self._target)
        if options.start:
            _take_over(self.module, load_eagle_head(options.start, model), self._target, options.start)
        self.module.to(model.get_input_embeddings().weight.device)
        borrow_from(self.module, model, "the new head")

    def groups(self) -> Sequence[Group]:
        """See `Method.groups`."""
        assert self.module.lm_head is not None
        output = list(self.module.lm_head.parameters())
        others = [p for name, p in self.module.named_parameters() if not name.startswith("lm_head.")]
        return [*decayed(others), Group(output, OUTPUT_RATE, 0.0)]

    def losses(self, batch: Batch) -> Losses:
        """See `Method.losses`."""
        total = torch.zeros((), device=batch.tokens.device)
        by_depth = []
        counts = torch.stack([self._shifted(batch.weights, step + 2) for step in range(self.depths)])  # [S, B, A]
        anchors = counts.amax(dim=0) > 0
        for step, hidden in enumerate(self._unrolled(batch, anchors)):
            rows, count = self._target.row_of[self._shifted(batch.tokens, step + 2)[anchors]], self.module.choices(step)
            weights = counts[step][anchors] * ((rows >= 0) & (rows < count))  # [R]
            chosen = weights > 0
            logits = self.module.logits(hidden[chosen], step)  # [n, count]
            final = self._shifted(batch.features[:, :, -1], step + 1)[anchors][chosen]  # [n, h]
            loss = weighted_loss(logits, self._target.logits(final, count), weights[chosen])
            total = total + DEPTH_DECAY**step * loss
            by_depth.append(float(loss.detach()))
        return Losses(total, tuple(by_depth))

    @torch.no_grad()
    def hits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Method.hits`; measured at the anchors of answers."""
        anchors = self._shifted(batch.roles, 2) == ANSWER
        hits, exists = [], []
        for step, hidden in enumerate(self._unrolled(batch, anchors)):
            best = self._target.ids[self.module.logits(hidden, step).argmax(dim=-1)]
            hits.append(best == self._shifted(batch.tokens, step + 2)[anchors])
            exists.append(self._shifted(batch.roles, step + 2)[anchors] == ANSWER)
        return torch.stack(hits, dim=1), torch.stack(exists, dim=1)

    def export(self, folder: Path) -> None:
        """Writes the head in the layout of EAGLE-3's authors."""
        dtype = self._model.dtype if self._model.dtype in (torch.bfloat16, torch.float16) else torch.float32
        tensors = {
            name.replace("layers.0.", "midlayer."): value.to(dtype) for name, value in self.module.state_dict().items()
        }
        ids = torch.from_numpy(self._vocabulary.ids)
        known = torch.zeros(self._vocabulary.vocab_size, dtype=torch.bool)
        known[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": known}
        save_weights(folder, eagle3_config_file(self.module.config, dtype), tensors)

    def _unrolled(self, batch: Batch, anchors: Tensor) -> Iterator[Tensor]:
        """Hidden states ``[R, h]`` that every step gives at the anchors wanted, sequence by sequence.

        Sequences lie one behind another without padding. Of anchors that are not wanted only the keys and values of
        step 0 are computed, where a later one sees them.

        Args:
            batch: the texts.
            anchors: bool ``[B, A]``, A = L - 2, with R of them true.
        """
        head, dtype = self.module, batch.features.dtype
        positions = torch.arange(anchors.shape[1], device=anchors.device).expand_as(anchors)  # [B, A]
        # each sequence's up to the last that is wanted, K in all
        seen = positions < ((positions + 1) * anchors).amax(dim=1, keepdim=True)  # [B, A]
        attend = _UnrolledAttention(anchors, seen)
        # in the batch's own type also under autocast, so that the residual adds up in float32
        hidden = head.fuse(batch.features[:, : anchors.shape[1], :-1][seen].flatten(1)).to(dtype)[None]  # [1, K, h]
        read, rows = seen, anchors[seen].nonzero()[:, 0]
        for step in range(self.depths):
            embeddings = head.embed(self._shifted(batch.tokens, step + 1)[read])[None].to(dtype)
            places = positions[read][None] + step
            hidden = head(embeddings, hidden, places, attend, rows if step == 0 else None)  # [1, R, h]
            attend.next_step()
            yield hidden[0]
            read = anchors

    @staticmethod
    def _shifted(values: Tensor, by: int) -> Tensor:
        """Entry i is that of position i + ``by``, for every anchor; behind the end, zeros (no role, no weight)."""
        anchors = values.shape[1] - 2
        end = torch.zeros_like(values[:, :1]).expand(-1, max(0, by - 2), *values.shape[2:])
        return torch.cat((values[:, by:], end), dim=1)[:, :anchors]


class _UnrolledAttention:
    """`Attend` over the steps so far: all of step 0 up to the anchor, then the anchor's own rows of later steps.

    The mask of step 2 in a sequence with anchors 1 and 2 wanted, columns step 0 | step 1 | step 2::

        1 1 .   1 .   1 .
        1 1 1   . 1   . 1

    Args:
        wanted: bool ``[B, A]``, the R anchors whose queries come, and which have rows in later steps.
        seen: bool ``[B, A]``, the K anchors that have rows in step 0.
    """

    def __init__(self, wanted: Tensor, seen: Tensor) -> None:
        self._rows: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._step = 0
        self._queries, self._keys = wanted.sum(dim=1).tolist(), seen.sum(dim=1).tolist()
        places = wanted.nonzero()[:, 1].split(self._queries)  # of each sequence [r]
        # of each sequence [r, k]
        self._earlier = [
            torch.arange(count, device=place.device) <= place[:, None]
            for place, count in zip(places, self._keys, strict=True)
        ]

    def next_step(self) -> None:
        """The next calls belong to the next step."""
        self._step += 1

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = self._rows.setdefault(layer, [])
        rows.append((key, value))
        counts = [self._keys, *[self._queries] * self._step]
        keys, values = (
            [part.split(count, dim=2) for part, count in zip(parts, counts, strict=True)]
            for parts in zip(*rows, strict=True)
        )
        mixed = [query[:, :, :0]]
        for i, asked in enumerate(query.split(self._queries, dim=2)):
            if not self._queries[i]:
                continue
            own = torch.eye(self._queries[i], dtype=torch.bool, device=query.device)
            mask = torch.cat([self._earlier[i], *[own] * self._step], dim=1)  # [r, k + s r]
            key, value = (torch.cat([part[i] for part in parts], dim=2) for parts in (keys, values))
            grouped = key.shape[1] < query.shape[1]
            mixed.append(scaled_dot_product_attention(asked, key, value, attn_mask=mask, enable_gqa=grouped))
        return torch.cat(mixed, dim=2)


def default_feature_layers(model: PreTrainedModel) -> tuple[int, ...]:
    """An early, a middle and a late layer, as all published heads read; as far apart as a small target allows."""
    layers = int(model.config.get_text_config().num_hidden_layers)
    return (min(2, layers - 1), layers // 2, max(0, layers - 3))


def eagle3_config(
    model: PreTrainedModel, vocabulary: DraftVocabulary, layers: tuple[int, ...], options: Eagle3Options
) -> EagleConfig:
    """A head of the target's own widths."""
    text = model.config.get_text_config()
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    return EagleConfig(
        version=3,
        hidden_size=int(text.hidden_size),
        target_hidden_size=int(text.hidden_size),
        intermediate_size=int(text.intermediate_size),
        heads=heads,
        kv_heads=kv_heads if options.published_only else heads,
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        norm_eps=float(getattr(text, "rms_norm_eps", 1e-6)),
        vocab_size=int(model.get_output_embeddings().out_features),
        draft_vocab_size=len(vocabulary.ids),
        deep_draft_vocab_size=None if options.published_only else vocabulary.deep,
        rope=rope_of(text),
        max_positions=int(getattr(text, "max_position_embeddings", 2048)),
        feature_layers=layers,
        features=len(layers),
        own_output=True,
        norm_each=not options.published_only,
        embedding_residual=not options.published_only,
    )


def rope_of(config: Any) -> dict[str, Any]:
    """The target's rotary parameters where a head can have the same, else plain ones of the same base."""
    rope = {key: value for key, value in (getattr(config, "rope_parameters", None) or {}).items() if value is not None}
    if "rope_type" not in rope:  # one set per kind of layer, or no rotary positions at all
        rope = dict(rope.get("full_attention", {}))
    theta = float(rope.get("rope_theta", 10000.0))
    plain = {"rope_type": "default", "rope_theta": theta}
    return {**plain, **rope} if rope.get("rope_type", "default") in ROPE_TYPES else plain


def eagle3_config_file(config: EagleConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The head's ``config.json`` as EAGLE-3's authors and SpecForge write it."""
    written: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.layers,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope["rope_theta"],
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": list(config.feature_layers or ()),
        },
    }
    if config.rope["rope_type"] != "default":
        written["rope_scaling"] = dict(config.rope)
    # keys that only this project knows are written only where they say something
    ours = {
        "fc_norm": config.norm_each,
        "embedding_residual": config.embedding_residual,
        "deep_draft_vocab_size": config.deep_draft_vocab_size,
    }
    return written | {key: value for key, value in ours.items() if value}


def _start(head: EagleHead, model: PreTrainedModel, target: TargetHead) -> None:
    assert isinstance(head.norm, nn.Module) and head.lm_head is not None
    start_norm(head.norm, model)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.weight)
        if head.embedding_residual is not None:
            head.embedding_residual.weight.zero_()


def _take_over(head: EagleHead, earlier: EagleHead, target: TargetHead, name: str) -> None:
    """Puts in the weights of an earlier head; output rows of tokens it did not draft stay the target's own.

    Raises:
        ValueError: it is of another make; names the first difference.
    """
    sizes = ("draft_vocab_size", "deep_draft_vocab_size", "target", "architectures", "max_positions")
    for field in fields(EagleConfig):
        now, then = getattr(head.config, field.name), getattr(earlier.config, field.name)
        if field.name not in sizes and now != then:
            raise ValueError(
                f"the head in {name} has {field.name} {then!r}, the new one {now!r}: it cannot begin there"
            )
    assert head.lm_head is not None and earlier.lm_head is not None
    weights = earlier.state_dict()
    rows = head.lm_head.weight.detach().clone()
    ids = torch.arange(earlier.config.vocab_size) if earlier.target_ids is None else earlier.target_ids
    places = target.row_of[ids]
    rows[places[places >= 0]] = weights["lm_head.weight"][places >= 0].to(rows.dtype)
    head.load_state_dict({**weights, "lm_head.weight": rows})
