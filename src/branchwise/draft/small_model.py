"""A smaller causal model as drafter.

Knows which trees to grow and in what order lanes are served. Does not know the target (it sees its tokens only), nor
how the small model's cache is kept in step (that is `model_lanes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..target.huggingface import HuggingFaceTarget
from ..target.protocol import GrowingTarget
from ..tree import TokenTree
from ..verify.coins import SeededCoins
from ..verify.proposal import DraftTree, Sampled
from .best_first import Path, check_budget, grow
from .expand import Expansion
from .expand_static import StaticExpansion
from .forbidden import forbidden
from .grammar import within_grammar
from .model_candidates import forced_by, likeliest
from .model_lanes import ModelLane, ModelLanes
from .protocol import DraftContext, StepRecord
from .sample_growth import SampledGrowth, draft_law
from .sample_plan import DrawRecord, plan_draws
from .tree_kind import TreeKind, tree_kind
from .vocabulary import check_shared_vocabulary, check_vocabulary_sizes

Growing = Expansion | StaticExpansion | SampledGrowth


@dataclass
class SmallModelState:
    """One lane: its place in the small model."""

    lane: ModelLane


@dataclass
class _Step:
    """One lane in the middle of `propose`."""

    state: SmallModelState
    context: DraftContext
    growing: Growing

    @property
    def paths(self) -> list[Path]:
        """Of the nodes to run next."""
        return [path for _, path in self.growing.frontier]


class SmallModelDrafter:
    """Drafts trees from any smaller causal model that shares the target's token ids.

    Each level of all lanes' trees is one forward of the small model. For a model with another tokenizer see
    `TextBridge`.

    Args:
        model: the small model, in eval mode; left as found. Or a target that runs it on another engine, for example
            ``NativeTarget(model, weights="int8")``; its weights are shared, its lanes are not.
        tree: how trees are grown, see `tree_kind`: ``"dynamic"``, ``"best_first"``, ``"static"``, ``"sampled"`` or
            ``"chain"``.
        depth: levels of the tree, one forward each; for ``"best_first"`` the most forwards.
        width: nodes expanded per level and candidates taken below each; for ``"sampled"`` the most draws at a node.
        shape: index paths of a ``"static"`` tree.
        tokenizer: the small model's tokenizer, to be compared with ``target_tokenizer``.
        target_tokenizer: the target's; both or neither must be given.

    Raises:
        ValueError: an option is out of range or does not go with the kind of tree, the tokenizers give shared ids
            different meanings, or the target is of a kind that drafters cannot run.
        UnsupportedModel: the small model cannot run trees.
    """

    name = "model"
    feature_layers: tuple[int, ...] = ()
    costs_forwards = True

    def __init__(
        self,
        model: PreTrainedModel | GrowingTarget,
        *,
        tree: str = "dynamic",
        depth: int | None = None,
        width: int | None = None,
        shape: Sequence[Sequence[int]] | None = None,
        tokenizer: Any = None,
        target_tokenizer: Any = None,
    ) -> None:
        if (tokenizer is None) != (target_tokenizer is None):
            raise ValueError("give both tokenizers or neither: one alone cannot be compared")
        self.kind: TreeKind = tree_kind(tree, depth=depth, width=width, shape=shape)
        self.is_deterministic = not self.kind.samples
        self.shape = "chain" if tree == "chain" else "tree"
        self._compared = tokenizer is not None
        if self._compared:
            check_shared_vocabulary(tokenizer, target_tokenizer)
        self._lanes = ModelLanes(_as_growing(model))
        self._record = DrawRecord()

    @property
    def vocab_size(self) -> int:
        """Ids the small model writes."""
        return self._lanes.model.vocab_size

    def start(self, context: DraftContext) -> SmallModelState:
        """Reads the prompt into a lane of the small model.

        Raises:
            ValueError: a prompt token is not in the small model's vocabulary, or the vocabularies cannot be one.
        """
        if not self._compared:
            check_vocabulary_sizes(self.vocab_size, context.vocab_size)
            highest = max(context.tokens)
            if highest >= self.vocab_size:
                raise ValueError(
                    f"token {highest} is outside the drafter's vocabulary of {self.vocab_size} ids; does it share the "
                    "target's tokenizer?"
                )
        return SmallModelState(self._lanes.open(context.tokens, self.kind.rows))

    def finish(self, state: SmallModelState) -> None:
        """Gives the lane back."""
        self._lanes.close(state.lane)

    def propose(
        self, states: Sequence[SmallModelState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Grows all lanes' trees together: one forward of the small model per level."""
        fixed = [self._forced_tree(*lane) for lane in zip(contexts, budgets, strict=True)]
        return self.complete(states, contexts, budgets, fixed)

    def complete(
        self,
        states: Sequence[SmallModelState],
        contexts: Sequence[DraftContext],
        budgets: Sequence[int],
        fixed: Sequence[DraftTree],
    ) -> list[DraftTree]:
        """As `propose`; a drafter that samples puts its draws beside and below the nodes of ``fixed``.

        Args:
            states: as for `propose`.
            contexts: as for `propose`.
            budgets: as for `propose`.
            fixed: one deterministic draft per lane, a lone root for none. They matter to sampled trees only, in which
                each of their nodes may find a place, before any draw at the same parent.
        """
        self._lanes.drop(state.lane for state in states)
        steps = [self._step(*lane) for lane in zip(states, contexts, budgets, fixed, strict=True)]
        open_steps = [step for step in steps if step.growing.frontier]
        rows = self._lanes.begin([(s.state.lane, s.context.tokens, s.paths) for s in open_steps]) if open_steps else []
        while open_steps:
            self._take(open_steps, rows)
            open_steps = [step for step in open_steps if step.growing.frontier]
            if open_steps:
                rows = self._lanes.grow([(step.state.lane, step.paths) for step in open_steps])
        return [step.growing.tree(step.context.tokens[-1], self.name) for step in steps]

    def observe(self, states: Sequence[SmallModelState], records: Sequence[StepRecord]) -> None:
        """Keeps the rows of the chain and of the accepted path, as far as the small model ran it."""
        kept = []
        for state, record in zip(states, records, strict=True):
            tree, path = record.draft.tree, record.verdict.path
            kept.append((state.lane, [tree.tokens[node] for node in path[1:]]))
            for depth, node in enumerate(path):
                self._learn(record.draft, node, path[depth + 1] if depth + 1 < len(path) else None)
        self._lanes.keep(kept)

    def follow(
        self,
        states: Sequence[SmallModelState],
        before: Sequence[Sequence[int]],
        contexts: Sequence[DraftContext],
    ) -> None:
        """Ends a step in which tokens near the ends of the texts may have changed; for `TextBridge`.

        Args:
            states: as for `observe`.
            before: per lane its tokens as `propose` saw them.
            contexts: with the tokens as they are now.
        """
        lanes = [
            (state.lane, old, context.tokens) for state, old, context in zip(states, before, contexts, strict=True)
        ]
        same = [_common(old, new) for _, old, new in lanes]
        self._lanes.keep(
            # the last token is the next root: its row must not be in the cache yet
            (lane, new[len(old) : -1] if common == len(old) else ())
            for (lane, old, new), common in zip(lanes, same, strict=True)
        )
        for (lane, old, new), common in zip(lanes, same, strict=True):
            most = min(len(new) - 1, common if common < len(old) else len(new))
            if self._lanes.length(lane) > most:
                self._lanes.shorten(lane, most)

    # the parts of a step

    def _step(self, state: SmallModelState, context: DraftContext, budget: int, fixed: DraftTree) -> _Step:
        check_budget(budget)
        reach = self._lanes.reach(state.lane, len(context.tokens))
        growing: Growing
        if self.kind.samples:
            growing = self._sampled(context, budget, fixed, reach)
        else:
            limits = [limit for limit in (context.max_depth, reach) if limit is not None]
            growing = self.kind.expansion(budget, min(limits, default=None), forced_by(context.grammar))
        return _Step(state, context, growing)

    def _sampled(self, context: DraftContext, budget: int, fixed: DraftTree, reach: int | None) -> SampledGrowth:
        shares, rounds = self._record.shares(self.kind.width), self.kind.forwards or budget
        slots = plan_draws(fixed, shares, budget, context.max_depth, rounds, reach)
        coins = context.coins if context.coins is not None else SeededCoins().drafting()
        follows_coins = context.sampler is None or context.sampler.do_sample
        return SampledGrowth(slots, coins if follows_coins else None)

    def _take(self, steps: Sequence[_Step], rows: Sequence[Tensor]) -> None:
        """Gives every tree what it asked for: laws to draw from, or the best candidates below its nodes."""
        if not self.kind.samples:
            for step, children in zip(steps, self._children(steps, rows), strict=True):
                assert not isinstance(step.growing, SampledGrowth)
                step.growing.take(children)
            return
        for step, logits in zip(steps, rows, strict=True):
            assert isinstance(step.growing, SampledGrowth)
            step.growing.take([_law(row, path, step.context) for row, path in zip(logits, step.paths, strict=True)])

    def _children(self, steps: Sequence[_Step], rows: Sequence[Tensor]) -> list[list[list[tuple[int, float]]]]:
        """Candidates below every frontier node of every growing lane: one selection over all rows."""
        vocab_size = min(self.vocab_size, *(step.context.vocab_size for step in steps))
        # one lane's rows are taken as they are: copying them costs nearly as much as the selection
        logits = (rows[0] if len(rows) == 1 else torch.cat(list(rows)))[:, :vocab_size]  # [all frontiers, V]
        places = [(step.context.grammar, path) for step in steps for path in step.paths]
        found = iter(likeliest(logits, places, self.kind.width))
        return [[next(found) for _ in step.paths] for step in steps]

    def _forced_tree(self, context: DraftContext, budget: int) -> DraftTree:
        """What a grammar alone would draft, for sampled trees; a lone root without one."""
        if not self.kind.samples or context.grammar is None:
            return DraftTree.deterministic(TokenTree.from_chain(context.tokens[-1]))
        expand = within_grammar(context.grammar, lambda path, least: ())
        growth = grow(context.tokens[-1], budget, context.max_depth, context.vocab_size, expand)
        return DraftTree.deterministic(TokenTree(growth.tokens, growth.parents), growth.sources[1:], growth.scores[1:])

    def _learn(self, draft: DraftTree, node: int, accepted: int | None) -> None:
        """What became of the draws at a node of the accepted path."""
        drawn = [child for child in draft.tree.children(node) if isinstance(draft.proposal(child), Sampled)]
        if drawn and (accepted is None or accepted in drawn):
            self._record.learn(len(drawn), None if accepted is None else drawn.index(accepted))


def _as_growing(model: PreTrainedModel | GrowingTarget) -> GrowingTarget:
    if isinstance(model, PreTrainedModel):
        return HuggingFaceTarget(model)
    if not hasattr(model, "for_drafting"):
        raise ValueError(
            f"a {type(model).__name__} cannot draft: trees cannot grow level by level in it; give the model itself"
        )
    return model.for_drafting()


def _law(logits: Tensor, path: Path, context: DraftContext) -> Tensor | None:
    legal = None
    if context.grammar is not None:
        legal = context.grammar.mask(path)
        if legal is None:  # the text is over there
            return None
    banned = forbidden(context, path)
    if banned is not None:
        legal = ~banned if legal is None else legal & ~banned
    return draft_law(logits, context.vocab_size, context.sampler, legal)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
