"""The block drafter: all next tokens guessed in one forward of a head, then the best tree of their marginals.

Knows lanes, the context rows that the head keeps for each, and when they are worth computing. Does not know the head's
layers, nor how the tree is chosen. Sources: DFlash (2026), its causal form JetSpec (2026), and DDTree (2026) for trees
over its marginals.

One forward serves all lanes. Its rows in the cache, S being the most context rows of any lane:

    row    0 ..... kept          S ..... S + n          S + N ....... S + N + Q
           | context | (unseen)  | new context | padding | root mask mask ... |

The n new rows, those of the tokens committed since the lane drafted last, are kept afterwards; the block never is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from ..cache import TreeCache
from ..verify.proposal import DraftTree
from .best_first import check_budget
from .block_head import BlockHead
from .block_load import load_block_head
from .marginals import Marginals, best_tree, marginals_of
from .none import NoneDrafter
from .protocol import DraftContext, StepRecord


@dataclass
class BlockState:
    """One lane: its place in the cache, and features ``[n, L * h]`` of committed tokens that are not in it yet."""

    lane: int
    pending: list[Tensor] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Tokens whose features are not in the cache yet."""
        return sum(map(len, self.pending))


class BlockDrafter:
    """Drafts with a `BlockHead` trained for the target.

    Args:
        head: the head, of the target's own width, in its dtype and on its device.
        model: the target; its embeddings and its output layer are used, and left alone.
        token_ids: target token of each entry of the head's own output layer; None when they are the same.
        depth: most tokens drafted in a row, up to the head's block size less one.

    Raises:
        ValueError: ``depth`` does not fit the head, or the head does not fit the target.
    """

    name = "block"

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: PreTrainedModel,
        *,
        depth: int | None = None,
        allow_pickle: bool = False,
    ) -> BlockDrafter:
        """The drafter of a head on disk; see `load_block_head` for the layouts and the errors."""
        loaded = load_block_head(folder, model, allow_pickle=allow_pickle)
        return cls(loaded.head, model, token_ids=loaded.token_ids, depth=depth)

    def __init__(
        self,
        head: BlockHead,
        model: PreTrainedModel,
        *,
        token_ids: Sequence[int] | None = None,
        depth: int | None = None,
    ) -> None:
        most = head.config.block_size - 1
        if depth is not None and not 1 <= depth <= most:
            raise ValueError(f"a head with blocks of {most + 1} drafts 1 to {most} tokens in a row, got depth {depth}")
        self.depth = most if depth is None else depth
        self.feature_layers = tuple(sorted(set(head.config.feature_layers)))
        self._head = head
        self._embedding: Tensor = (head.embed_tokens or model.get_input_embeddings()).weight
        if not self._embedding.is_floating_point() or self._embedding.shape[1] != head.config.hidden_size:
            raise ValueError(
                f"a head of width {head.config.hidden_size} cannot read the target's embeddings of width "
                f"{self._embedding.shape[1]} in {self._embedding.dtype}; load the head's own target, unquantised"
            )
        self._unembed = head.lm_head or model.get_output_embeddings()
        self._token_ids = token_ids
        self._cache = TreeCache([None] * head.config.layers)

    def start(self, context: DraftContext) -> BlockState:
        """A lane for the prompt, whose features come with the first `propose`."""
        self._cache.rollback()
        return BlockState(self._cache.open(len(context.tokens) + 2 * self._head.config.block_size))

    def finish(self, state: BlockState) -> None:
        """Gives the lane back."""
        self._cache.rollback()
        self._cache.free(state.lane)

    @torch.no_grad()
    def propose(
        self, states: Sequence[BlockState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Best-first trees of all lanes' marginals, from one forward of the head.

        Lanes that may not draft now only collect their features: those are read when a draft is wanted again.

        Raises:
            ValueError: a budget is below 1, or features of committed tokens are missing.
        """
        for state, context in zip(states, contexts, strict=True):
            self._collect(state, context)
        depths = [self._depth(context, budget) for context, budget in zip(contexts, budgets, strict=True)]
        depth = max(depths, default=0)
        if depth == 0:
            return NoneDrafter().propose([None] * len(states), contexts, budgets)
        marginals = self._marginals(states, contexts, depth)
        return [
            best_tree(lane, context, budget, self.name)
            for lane, context, budget in zip(marginals, contexts, budgets, strict=True)
        ]

    def observe(self, states: Sequence[BlockState], records: Sequence[StepRecord]) -> None:
        """Nothing to learn: the features of the accepted path come with the next context."""

    def _depth(self, context: DraftContext, budget: int) -> int:
        check_budget(budget)
        depth = min(self.depth, budget - 1)
        return depth if context.max_depth is None else min(depth, context.max_depth)

    def _collect(self, state: BlockState, context: DraftContext) -> None:
        """Sets the features of newly committed tokens aside, once."""
        missing = len(context.tokens) - 1 - self._cache.length(state.lane) - state.waiting
        if missing == 0:
            return
        layers, features = self._head.config.feature_layers, context.features
        given = min(len(features[layer]) if layer in features else 0 for layer in layers)
        if given != missing:
            raise ValueError(f"{missing} tokens were committed since the last draft, but there are features of {given}")
        device = self._embedding.device
        state.pending.append(torch.cat([features[layer].to(device) for layer in layers], dim=-1))  # [n, L * h]

    def _marginals(self, states: Sequence[BlockState], contexts: Sequence[DraftContext], depth: int) -> list[Marginals]:
        """Distributions of the next ``depth`` tokens of every lane; keeps the new context rows."""
        self._cache.rollback()
        slots = [self._cache.slot(state.lane) for state in states]
        # lanes in between that take no part (another caller's) ride along with rows that nobody keeps
        span = range(min(slots), max(slots) + 1)
        at = [slot - span.start for slot in slots]
        try:
            self._cache.begin(span)
            new = self._remember(states, at, len(span))
            hidden = self._run_block(contexts, at, new, depth)  # [B, Q, h]
            self._cache.commit({state.lane: range(new[row]) for state, row in zip(states, at, strict=True)})
        except BaseException:
            self._cache.rollback()
            raise
        for state in states:
            state.pending = []
        logits = self._unembed(hidden[at, 1 : depth + 1])  # [L, depth, V]
        if self._token_ids is None:
            logits = logits[..., : contexts[0].vocab_size]
        return marginals_of(logits, self._token_ids)

    def _remember(self, states: Sequence[BlockState], at: Sequence[int], batch: int) -> list[int]:
        """Writes the waiting context rows of all lanes, padded to the most of any; returns how many each row has."""
        new, starts = [0] * batch, [0] * batch
        for state, row in zip(states, at, strict=True):
            new[row], starts[row] = state.waiting, self._cache.length(state.lane)
        if not any(new):
            return new
        like = next(rows for state in states for rows in state.pending)
        features = like.new_zeros((batch, max(new), like.shape[-1]))  # [B, N, L * h]
        for state, row in zip(states, at, strict=True):
            if state.pending:
                features[row, : new[row]] = torch.cat(state.pending)
        positions = torch.tensor(starts, device=like.device)[:, None] + torch.arange(max(new), device=like.device)
        self._head.remember(features, positions, self._cache)
        return new

    def _run_block(self, contexts: Sequence[DraftContext], at: Sequence[int], new: Sequence[int], depth: int) -> Tensor:
        config, device = self._head.config, self._embedding.device
        # a causal block may end where the tree does; the others were trained to see all of their mask tokens
        width = depth + 1 if config.causal else config.block_size
        ids = torch.full((len(new), width), config.mask_token_id, device=device)
        roots = torch.zeros(len(new), dtype=torch.long)
        for context, row in zip(contexts, at, strict=True):
            ids[row, 0] = context.tokens[-1]
            roots[row] = len(context.tokens) - 1
        positions = roots.to(device)[:, None] + torch.arange(width, device=device)  # [B, Q]
        visible = self._visible(new, width).to(device)
        return self._head(embedding(ids, self._embedding), positions, self._cache, visible)

    def _visible(self, new: Sequence[int], width: int) -> Tensor:
        """Which rows each block position sees, bool ``[B, Q, S + N + Q]``: see the picture at the top."""
        kept = torch.tensor(self._cache.committed_rows(0))
        context = torch.arange(int(kept.max())) < kept[:, None]  # [B, S]
        fresh = torch.arange(max(new)) < torch.tensor(new)[:, None]  # [B, N]
        before = torch.cat((context, fresh), dim=1)[:, None].expand(-1, width, -1)  # [B, Q, S + N]
        block = torch.ones((width, width), dtype=torch.bool)
        if self._head.config.causal:
            block = block.tril()
        return torch.cat((before, block.expand(len(new), -1, -1)), dim=2)
