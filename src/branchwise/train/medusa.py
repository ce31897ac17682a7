"""Training Medusa's heads (Cai et al. 2024, section 2.2, Medusa-1): small networks on the target's last hidden state.

Head k, from 0, reads the final hidden state at position t and learns what the target says after x[t + k + 1], the token
k + 2 places after t: the target's own output layer says the one before. Every row of the output layers learns, since
the layout has no draft vocabulary: a row that never learned would say anything. Knows batches and the heads' network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..draft.medusa_head import MedusaHeads, ResidualBlock
from .batches import Batch
from .draft_vocabulary import DraftVocabulary
from .initial import seeded
from .method import Group, Losses, decayed, save_weights
from .shards import ANSWER
from .soft_loss import weighted_loss
from .target_head import TargetHead

DEPTH_DECAY = 0.8
#: the output layers start from the target's rows and move less than the rest
OUTPUT_RATE = 0.2
WEIGHTS = "medusa_lm_head.safetensors"


@dataclass(frozen=True)
class MedusaOptions:
    """What may be chosen.

    Attributes:
        heads: tokens that are guessed.
        blocks: residual blocks per head.
    """

    heads: int = 4
    blocks: int = 1

    def __post_init__(self) -> None:
        if self.heads < 1 or self.blocks < 1:
            raise ValueError(f"Medusa needs at least 1 head of 1 block, got {self.heads} of {self.blocks}")


class MedusaMethod:
    """See the module.

    Args:
        model: the target; only read.
        vocabulary: all of the target's.
        options: see there.
        seed: of the initial weights.
    """

    name = "medusa"
    feature_layers: tuple[int, ...] = ()

    def __init__(
        self, model: PreTrainedModel, vocabulary: DraftVocabulary, options: MedusaOptions, seed: int = 0
    ) -> None:
        self._model = model
        self._options = options
        vocabulary.require_full(self.name)
        self.depths = options.heads
        self._target = TargetHead(model, torch.from_numpy(vocabulary.ids))
        width = int(model.config.get_text_config().hidden_size)
        with seeded(seed):
            self.module = MedusaHeads(options.heads, options.blocks, width, len(vocabulary.ids))
        self._start()
        self.module.to(model.get_input_embeddings().weight.device)

    def _start(self) -> None:
        """As in the paper: every head begins as the target's own output layer."""
        with torch.no_grad():
            for module in self.module.modules():
                if isinstance(module, ResidualBlock):
                    module.linear.weight.zero_()
                    module.linear.bias.zero_()
            for output in self._outputs():
                output.copy_(self._target.weight)

    def _outputs(self) -> list[torch.nn.Parameter]:
        last = f".{self._options.blocks}.weight"
        return [p for name, p in self.module.named_parameters() if name.endswith(last) and "linear" not in name]

    def groups(self) -> Sequence[Group]:
        """See `Method.groups`."""
        outputs = self._outputs()
        known = set(map(id, outputs))
        return [*decayed([p for p in self.module.parameters() if id(p) not in known]), Group(outputs, OUTPUT_RATE)]

    def losses(self, batch: Batch) -> Losses:
        """See `Method.losses`."""
        final = batch.features[:, :, -1]  # [B, L, h]
        total = torch.zeros((), device=final.device)
        by_depth = []
        for depth, head in enumerate(self.module):
            said = batch.tokens[:, depth + 2 :]  # [B, A]
            weights = batch.weights[:, depth + 2 :] * (self._target.row_of[said] >= 0)
            chosen = weights > 0
            logits = head(final[:, : said.shape[1]][chosen])  # [n, D]
            asked = self._target.logits(final[:, depth + 1 : -1][chosen])  # [n, D]
            loss = weighted_loss(logits, asked, weights[chosen])
            total = total + DEPTH_DECAY**depth * loss
            by_depth.append(float(loss.detach()))
        return Losses(total, tuple(by_depth))

    @torch.no_grad()
    def hits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Method.hits`."""
        assert len(batch.tokens) == 1, "texts are measured one by one"
        final, length = batch.features[0, :, -1], batch.tokens.shape[1]
        anchors = (batch.roles[0, 2:] == ANSWER).nonzero()[:, 0]  # [n]
        hits, exists = [], []
        for depth, head in enumerate(self.module):
            best = self._target.ids[head(final[anchors]).argmax(dim=-1)]
            place = anchors + depth + 2
            inside = place < length
            place = place.clamp(max=length - 1)
            hits.append((best == batch.tokens[0, place]) & inside)
            exists.append((batch.roles[0, place] == ANSWER) & inside)
        return torch.stack(hits, dim=1), torch.stack(exists, dim=1)

    def export(self, folder: Path) -> None:
        """Writes the heads in Medusa's layout, whose output layers hold the whole vocabulary."""
        dtype = self._model.dtype if self._model.dtype in (torch.bfloat16, torch.float16) else torch.float32
        tensors = {name: value.to(dtype) for name, value in self.module.state_dict().items()}
        text = self._model.config.get_text_config()
        config = {
            "medusa_num_heads": self._options.heads,
            "medusa_num_layers": self._options.blocks,
            "hidden_size": int(text.hidden_size),
            "vocab_size": len(self._target.ids),
            "torch_dtype": str(dtype).removeprefix("torch."),
        }
        save_weights(folder, config, tensors, file=WEIGHTS)
