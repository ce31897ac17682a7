"""The target's own first layers as drafter (self-speculation): no second model, no second cache.

Knows which layers draft and how large a tree to grow from them. How a model's layers run apart, and how verification
goes on from what drafting computed, is the target's business (`target.early_exit`).

How good the drafts are is a matter of training: a model whose early layers were trained to predict (LayerSkip), or an
adapter for them, drafts well; the early layers of an ordinary model do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..target.early_exit import Adapter, EarlyExit
from ..target.huggingface import HuggingFaceTarget
from ..target.protocol import Target
from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Path, check_budget
from .expand import Expansion
from .model_candidates import forced_by, likeliest
from .protocol import DraftContext, StepRecord

MODES = ("reuse", "recompute")
#: without a layer to exit at, this share of the layers drafts
DEFAULT_SHARE = 0.25


@dataclass
class _Lane:
    """One lane in the middle of `propose`.

    Attributes:
        number: the target's.
        context: what is known of it.
        expansion: candidates and the frontier.
        run: the nodes that were run, or are about to be, in that order.
        node_of: their numbers by path.
    """

    number: int
    context: DraftContext
    expansion: Expansion
    run: TokenTree
    node_of: dict[Path, int]

    def add_frontier(self) -> None:
        """Appends what the frontier's paths lack: their last nodes, and forced tokens on the way there."""
        tokens, parents = list(self.run.tokens), list(self.run.parents)
        for _, path in self.expansion.frontier:
            for depth in range(1, len(path) + 1):
                if path[:depth] not in self.node_of:
                    self.node_of[path[:depth]] = len(tokens)
                    tokens.append(path[depth - 1])
                    parents.append(self.node_of[path[: depth - 1]])
        self.run = TokenTree(tokens, parents)

    def frontier_rows(self, newest: int) -> list[int]:
        """Where the frontier lies among the newest nodes that were run."""
        start = len(self.run) - newest
        return [self.node_of[path] - start for _, path in self.expansion.frontier]


class EarlyExitDrafter:
    """Drafts dynamic trees from some of the target's layers, its final norm and its head.

    Args:
        target: the target of the loop, and no other.
        exit_layer: so many first layers draft; a quarter of them by default.
        skip_layers: the layers to leave out instead, in any order; not layer 0. Only those before the first one left
            out can be reused.
        mode: ``"reuse"``: verification goes on from the drafts' keys, values and hidden states. ``"recompute"``: it
            runs all layers again. Both are exact.
        depth: levels of the tree, one forward of the drafting layers each.
        width: nodes expanded per level and candidates taken below each.
        adapter: a trained module for the place of the first layer left out: hidden states ``[B, N, h]`` -> of the same
            shape and dtype, on their device. Goes with ``exit_layer``.

    Raises:
        ValueError: an option is out of range, or two exclude each other.
        UnsupportedSplit: the model's layers cannot be run apart.
    """

    name = "early_exit"
    feature_layers: tuple[int, ...] = ()
    costs_forwards = True

    def __init__(
        self,
        target: Target,
        *,
        exit_layer: int | None = None,
        skip_layers: Sequence[int] | None = None,
        mode: str = "reuse",
        depth: int = 3,
        width: int = 3,
        adapter: Adapter | None = None,
    ) -> None:
        for label, value in (("depth", depth), ("width", width)):
            if value < 1:
                raise ValueError(f"an early-exit drafter needs {label} >= 1, got {value}")
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if not isinstance(target, HuggingFaceTarget):
            raise ValueError(f"early exit needs a transformers model as target, not a {type(target).__name__}")
        if skip_layers is not None and (exit_layer is not None or adapter is not None):
            other = "exit_layer" if exit_layer is not None else "adapter"
            raise ValueError(f"skip_layers and {other} exclude each other; give one")
        self.depth = depth
        self.width = width
        self.mode = mode
        skipped = _skipped(len(target.windows), exit_layer, skip_layers)
        self._target = target
        self._early = EarlyExit(target, skipped, reuse=mode == "reuse", adapter=adapter)

    def start(self, context: DraftContext) -> int:
        """The lane's number is all there is to remember.

        Raises:
            ValueError: the lane is not one of the target this drafter works in.
        """
        if context.place is None or context.place.target is not self._target:
            raise ValueError(
                "this early-exit drafter works inside another target; make it for the target that generates"
            )
        return context.place.number

    def propose(
        self, states: Sequence[int], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Grows all lanes' trees together: one forward of the drafting layers per level.

        What was computed stays in flight in the target for its next `forward`.
        """
        self._target.rollback()  # of a draft that nobody verified
        lanes = [self._lane(*lane) for lane in zip(states, contexts, budgets, strict=True)]
        try:
            self._grow(lanes)
        except BaseException:
            self._target.rollback()
            raise
        return [lane.expansion.tree(lane.context.tokens[-1], self.name) for lane in lanes]

    def _lane(self, number: int, context: DraftContext, budget: int) -> _Lane:
        check_budget(budget)
        deepest = budget - 1 if context.max_depth is None else min(budget - 1, context.max_depth)
        expansion = Expansion(budget, self.width, deepest, self.depth, forced_by(context.grammar))
        return _Lane(number, context, expansion, TokenTree.from_chain(context.tokens[-1]), {(): 0})

    def _grow(self, lanes: Sequence[_Lane]) -> None:
        growing = [lane for lane in lanes if lane.expansion.frontier]
        if not growing:
            return
        for lane in growing:
            lane.add_frontier()
        # the features of the last step tell which ones the loop will ask for
        features = sorted({layer for lane in lanes for layer in lane.context.features})
        logits = self._early.begin({lane.number: lane.run for lane in lanes}, tuple(features))
        while True:
            self._take(growing, logits)
            growing = [lane for lane in growing if lane.expansion.frontier]
            if not growing:
                break
            for lane in growing:
                lane.add_frontier()
            logits = self._early.grow({lane.number: lane.run for lane in growing})
        self._early.end()

    def _take(self, lanes: Sequence[_Lane], logits: Mapping[int, Tensor]) -> None:
        """Gives every lane the candidates below its frontier."""
        vocab_size = min(lane.context.vocab_size for lane in lanes)
        rows = torch.cat([logits[lane.number][lane.frontier_rows(len(logits[lane.number]))] for lane in lanes])
        places = [(lane.context.grammar, path) for lane in lanes for _, path in lane.expansion.frontier]
        found = iter(likeliest(rows[:, :vocab_size], places, self.width))
        for lane in lanes:
            lane.expansion.take([next(found) for _ in lane.expansion.frontier])

    def observe(self, states: Sequence[int], records: Sequence[StepRecord]) -> None:
        """Nothing to learn, and the target keeps the cache."""


def _skipped(count: int, exit_layer: int | None, skip_layers: Sequence[int] | None) -> list[int]:
    if skip_layers is not None:
        return sorted(skip_layers)
    if exit_layer is None:
        exit_layer = max(1, round(DEFAULT_SHARE * count))
    if not 1 <= exit_layer < count:
        raise ValueError(f"exit_layer must be from 1 to {count - 1} for a model of {count} layers, got {exit_layer}")
    return list(range(exit_layer, count))
