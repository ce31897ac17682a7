"""A whole drafter as one candidate source among others: heads, a small model, an oracle.

Knows the drafter's trees. Does not know how it grows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..verify.proposal import DraftTree
from .best_first import Path
from .protocol import DraftContext, Drafter, DraftState, StepRecord
from .source import Evidence

#: kinds of evidence: how sure the drafter is of its first child, in quarters
SURENESS = 4


@dataclass
class DrafterSourceState:
    """One lane.

    Attributes:
        inner: the drafter's own state.
        is_started: whether there is one: a head that costs forwards is started when it is first asked, so that a lane
            that never asks it pays nothing.
        children: what it drafted in this step, with conditional estimates.
        missed: features of the steps in which it was not asked, for a drafter that reads features.
    """

    inner: DraftState
    is_started: bool = True
    children: dict[Path, dict[int, float]] = field(default_factory=dict)
    missed: list[dict[int, Any]] = field(default_factory=list)


class DrafterSource:
    """Lets a drafter draft its own tree once per step and offers that tree's children, path by path.

    Below nodes of other sources the drafter has nothing to say. It observes the steps of the mixed trees.

    A drafter that samples says nothing path by path: its draws are put beside and below the tree of all the others, by
    `complete`.

    Args:
        drafter: any drafter. One that samples must have a `complete` of its own, as `SmallModelDrafter` has.

    Raises:
        ValueError: the drafter samples and cannot complete another tree.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.label = str(getattr(drafter, "label", drafter.name))
        self.feature_layers = drafter.feature_layers
        self.trust: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
        self.costs_forwards = bool(getattr(drafter, "costs_forwards", False))
        self.samples = not getattr(drafter, "is_deterministic", True)
        if self.samples and not hasattr(drafter, "complete"):
            raise ValueError(
                f"drafter {self.name!r} samples its drafts and cannot put them beside those of others, so it cannot "
                "share a mixed tree"
            )
        self._drafter = drafter

    def start(self, context: DraftContext) -> DrafterSourceState:
        """Starts the drafter on the lane, or leaves that to the first draft."""
        state = DrafterSourceState(None, is_started=False)
        if hasattr(self._drafter, "prepare"):
            self._drafter.prepare()  # so that nobody takes the time of it for that of a draft
        # a small model refuses a prompt that it cannot read here, before the first token
        if not (self.costs_forwards and self.feature_layers):
            self._start(state, context)
        return state

    def _start(self, state: DrafterSourceState, context: DraftContext) -> None:
        if not state.is_started:
            state.inner = self._drafter.start(context)
            state.is_started = True

    def finish(self, state: DrafterSourceState) -> None:
        """Tells a drafter that wants to know that the lane has ended."""
        if state.is_started and hasattr(self._drafter, "finish"):
            self._drafter.finish(state.inner)

    def begin(
        self, states: Sequence[DrafterSourceState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> None:
        """Drafts, all lanes at once, unless the drafter samples.

        Raises:
            ValueError: the drafter sampled a node without having said so.
        """
        if self.samples:
            return
        contexts = self._ready(states, contexts)
        drafts = self._drafter.propose([state.inner for state in states], contexts, budgets)
        for state, draft in zip(states, drafts, strict=True):
            if not draft.is_deterministic:
                raise ValueError(f"drafter {self.name!r} samples its drafts, so it cannot share a mixed tree")
            state.children = _children_by_path(draft)

    def _ready(self, states: Sequence[DrafterSourceState], contexts: Sequence[DraftContext]) -> Sequence[DraftContext]:
        """Contexts with everything since the last draft, of lanes that the drafter has been started on."""
        contexts = [_with_missed(state, context) for state, context in zip(states, contexts, strict=True)]
        for state, context in zip(states, contexts, strict=True):
            self._start(state, context)
        return contexts

    def skip(self, states: Sequence[DrafterSourceState], contexts: Sequence[DraftContext]) -> None:
        """A step goes by without the drafter; it will find more new tokens, and their features, at the next one."""
        if self.feature_layers:
            for state, context in zip(states, contexts, strict=True):
                state.missed.append(context.features)

    def complete(
        self,
        states: Sequence[DrafterSourceState],
        contexts: Sequence[DraftContext],
        budgets: Sequence[int],
        drafts: Sequence[DraftTree],
    ) -> list[DraftTree]:
        """The drafts of the others with this drafter's draws among them; only for one that samples."""
        contexts = self._ready(states, contexts)
        # `samples` promises the method, which is no part of the protocol
        return self._drafter.complete([s.inner for s in states], contexts, budgets, drafts)  # type: ignore[attr-defined]

    def evidence(self, state: DrafterSourceState, path: Path) -> list[Evidence]:
        """The drafter's children below ``path``."""
        weights = state.children.get(path)
        if not weights:
            return []
        kind = min(SURENESS - 1, int(next(iter(weights.values())) * SURENESS))
        return [Evidence(kind, weights, max(1.0, sum(weights.values())))]

    def absorb(self, states: Sequence[DrafterSourceState], records: Sequence[StepRecord]) -> None:
        """Shows the drafter the steps of the lanes that it has been started on."""
        started = [(state.inner, record) for state, record in zip(states, records, strict=True) if state.is_started]
        if started:
            self._drafter.observe([inner for inner, _ in started], [record for _, record in started])


def _with_missed(state: DrafterSourceState, context: DraftContext) -> DraftContext:
    """The context with the features of the steps that the drafter was not asked in put before the latest."""
    if not state.missed:
        return context
    parts = [*state.missed, context.features]
    state.missed = []
    # the prompt of one token has no features at all
    layers = {layer for part in parts for layer in part}
    return replace(
        context, features={layer: torch.cat([part[layer] for part in parts if layer in part]) for layer in layers}
    )


def _children_by_path(draft: DraftTree) -> dict[Path, dict[int, float]]:
    """Estimates of a node given its parent; without scores the children of a node are taken as equally likely."""
    tree = draft.tree
    paths: list[Path] = [()]
    children: dict[Path, dict[int, float]] = {}
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        if draft.scores:
            above = draft.scores[parent - 1] if parent else 1.0
            share = draft.scores[node - 1] / above if above > 0.0 else 0.0
        else:
            share = 1.0 / len(tree.children(parent))
        if share > 0.0:
            children.setdefault(paths[parent], {})[tree.tokens[node]] = share
        paths.append((*paths[parent], tree.tokens[node]))
    return {path: dict(sorted(row.items(), key=lambda item: -item[1])) for path, row in children.items()}
