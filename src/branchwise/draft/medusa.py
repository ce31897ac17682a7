"""The Medusa drafter: the next tokens guessed side by side from the target's last hidden state.

Knows which hidden state to use and which tree to fill. Does not know the heads' networks. Source: Medusa (Cai et al.
2024); the heads of Medusa-1 and Medusa-2 have the same layout.

When a draft is wanted, the root is decided but was not run yet, so the newest hidden state is that of the token before
it, the one that the root was predicted from:

    position         p                   p + 1     p + 2      p + 3
    token            last one run        root      depth 1    depth 2
    predicted by                         lm_head   head 0     head 1       all from the hidden state at p
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..verify.proposal import DraftTree
from .best_first import check_budget
from .index_tree import IndexTree
from .marginals import best_tree, marginals_of
from .medusa_head import MedusaHeads
from .medusa_load import load_medusa_heads
from .none import NoneDrafter
from .protocol import DraftContext, StepRecord


@dataclass
class MedusaState:
    """One lane: the newest hidden state ``[h]``, None before the first token was run."""

    hidden: Tensor | None = None


class MedusaDrafter:
    """Drafts with `MedusaHeads` trained for the target.

    Args:
        heads: the heads, of the target's own width, in its dtype and on its device.
        model: the target; left alone.
        choices: index paths of a static tree, as ``medusa_choices``; without them the tree is the best one for each
            step's marginals.

    Raises:
        ValueError: a choice is malformed, or asks for a head or a token that does not exist.
    """

    name = "medusa"

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: PreTrainedModel,
        *,
        choices: Iterable[Sequence[int]] | None = None,
        allow_pickle: bool = False,
    ) -> MedusaDrafter:
        """The drafter of heads on disk; see `load_medusa_heads` for the layout and the errors."""
        return cls(load_medusa_heads(folder, model, allow_pickle=allow_pickle), model, choices=choices)

    def __init__(
        self, heads: MedusaHeads, model: PreTrainedModel, *, choices: Iterable[Sequence[int]] | None = None
    ) -> None:
        self._heads = heads
        self._device = next(heads.parameters()).device
        self._tree = None if choices is None else IndexTree(choices)
        self._vocab_size = int(model.get_output_embeddings().out_features)
        if self._tree is not None:
            self._tree.check(len(heads), self._vocab_size)
        self._layer = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        self.feature_layers: tuple[int, ...] = (self._layer,)

    def start(self, context: DraftContext) -> MedusaState:
        """Nothing is known before the first `propose`, which brings the prompt's hidden states."""
        return MedusaState()

    @torch.no_grad()
    def propose(
        self, states: Sequence[MedusaState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """One tree per lane, from one run of the heads over all lanes. A prompt of one token has no draft yet.

        Raises:
            ValueError: a budget is below 1.
        """
        for state, context in zip(states, contexts, strict=True):
            rows = context.features.get(self._layer)
            if rows is not None and len(rows):
                state.hidden = rows[-1].to(self._device)
        depths = [self._depth(*lane) for lane in zip(contexts, budgets, strict=True)]
        drafts = NoneDrafter().propose([None] * len(states), contexts, budgets)
        hidden = {
            lane: state.hidden for lane, state in enumerate(states) if depths[lane] > 0 and state.hidden is not None
        }
        if hidden:
            logits = self._heads(torch.stack(list(hidden.values())), max(depths[lane] for lane in hidden))  # [L, D, V]
            for lane, marginals in zip(hidden, marginals_of(logits), strict=True):
                if self._tree is None:
                    drafts[lane] = best_tree(marginals, contexts[lane], budgets[lane], self.name)
                else:
                    drafts[lane] = self._tree.filled(marginals, contexts[lane], budgets[lane], self.name)
        return drafts

    def observe(self, states: Sequence[MedusaState], records: Sequence[StepRecord]) -> None:
        """Nothing to learn: the newest hidden state comes with the next context."""

    def _depth(self, context: DraftContext, budget: int) -> int:
        """Heads that a lane's tree can use now."""
        check_budget(budget)
        depth = min(len(self._heads) if self._tree is None else self._tree.depth, budget - 1)
        return depth if context.max_depth is None else min(depth, context.max_depth)
