"""The EAGLE drafter: a head that continues the target's hidden states, and the dynamic tree of what it is sure of.

Knows lanes and levels. Does not know the head's network (eagle_head.py) nor its cache (head_lanes.py). Sources: EAGLE-2
(Li et al. 2024b, section 4) for the tree; the heads are those of EAGLE (2024a) and EAGLE-3 (2025).

A tree of depth d costs d forwards of the head: the first reads the tokens committed since the last draft and gives the
candidates of depth 1, the next runs the best of them and gives those of depth 2, and so on; the deepest candidates are
never run. How many levels a tree gets is decided while it grows, by what the next one promises and costs (`LevelRule`),
or fixed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isnan

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..verify.proposal import DraftTree
from .best_first import check_budget
from .eagle_head import EagleHead
from .eagle_lanes import Lanes, lanes_for
from .eagle_load import load_eagle_head
from .expand import Expansion
from .head_lanes import CHUNK, Candidates, CommittedRows
from .levels import LevelRule
from .protocol import DraftContext, StepRecord

#: levels of a tree at most where nobody says how many
MOST_LEVELS = 6


@dataclass
class EagleState:
    """One lane.

    Attributes:
        lane: its place in the head's cache.
        pending: features ``[n, F * h_t]`` of committed tokens that were not run yet.
        promised: what each level of the latest tree but the first promised, see `LevelRule`.
    """

    lane: int
    pending: list[Tensor] = field(default_factory=list)
    promised: list[float] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Rows that are not in the head's cache yet."""
        return sum(map(len, self.pending))


class EagleDrafter:
    """Drafts dynamic trees with an `EagleHead` trained for the target.

    Args:
        head: the head, see `load_eagle_head`; it must have borrowed what it lacks.
        depth: levels of the tree, one forward of the head each; ``"auto"``: as many as pay, `MOST_LEVELS` at most.
        width: nodes run per level and candidates taken below each.
        attention: name of torch's attention backend, or ``"auto"``.
        engine: what runs the head: "torch", "native" (C, on a CPU), or ``"auto"``: the faster one that can.
        weights: format of the native engine's weights, see `NativeHead`; its own choice if absent.

    Raises:
        ValueError: depth or width is below 1, or depth, engine or weights are another word.
        NativeUnavailable: the native engine was asked for and cannot run this head.
    """

    name = "eagle"
    costs_forwards = True

    def __init__(
        self,
        head: EagleHead,
        *,
        depth: int | str = "auto",
        width: int = 8,
        attention: str = "auto",
        engine: str = "auto",
        weights: str | None = None,
    ) -> None:
        if isinstance(depth, str) and depth != "auto":
            raise ValueError(f"depth is a number of levels or 'auto', got {depth!r}")
        self._levels = LevelRule() if depth == "auto" else None
        self.depth = MOST_LEVELS if isinstance(depth, str) else depth
        self.width = width
        for label, value in (("depth", self.depth), ("width", width)):
            if value < 1:
                raise ValueError(f"an EAGLE drafter needs {label} >= 1, got {value}")
        self.feature_layers = tuple(sorted(set(head.feature_layers)))  # small targets: one layer may count twice
        self._wanted = min(width, head.choices(1))  # candidates below a node
        self._lanes: Lanes = lanes_for(head, self._wanted, attention=attention, engine=engine, weights=weights)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: PreTrainedModel,
        *,
        depth: int | str = "auto",
        width: int = 8,
        engine: str = "auto",
        allow_pickle: bool = False,
    ) -> EagleDrafter:
        """The drafter of a head on disk; see `load_eagle_head` for the layouts and the errors."""
        head = load_eagle_head(folder, model, allow_pickle=allow_pickle)
        return cls(head, depth=depth, width=width, engine=engine)

    @property
    def head(self) -> EagleHead:
        """The head."""
        return self._lanes.head

    @property
    def engine(self) -> str:
        """What runs the head: "torch" or "native"."""
        return self._lanes.engine

    @torch.no_grad()
    def start(self, context: DraftContext) -> EagleState:
        """Reads the prompt up to the root, whose row is the first draft's business."""
        self._lanes.rollback()
        state = EagleState(self._lanes.open(len(context.tokens) + self.depth * self.width))
        try:
            self._take_in(state, context)
            self._read_ahead(state, context, leave=1)
        except BaseException:
            self.finish(state)
            raise
        return state

    def finish(self, state: EagleState) -> None:
        """Gives the lane back."""
        self._lanes.free(state.lane)

    @torch.no_grad()
    def propose(
        self, states: Sequence[EagleState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Grows all lanes' trees together: one forward of the head per level.

        A lane that may draft nothing now runs nothing; what it was given is kept for the next draft. The first step
        after a prompt of one token has no features, and no draft.

        Raises:
            ValueError: a budget is below 1, features are missing, or the head computes no probabilities.
        """
        self._lanes.rollback()
        for state, context in zip(states, contexts, strict=True):
            self._take_in(state, context)
            state.promised = []
        expansions = [self._expansion(*lane) for lane in zip(states, contexts, budgets, strict=True)]
        growing = [i for i, expansion in enumerate(expansions) if expansion.max_depth > 0 and expansion.budget > 1]
        if growing and self._levels is not None:
            self._levels.begin()
        found = self._roots(growing, states, contexts)
        depth = 0
        while found:
            depth += 1
            nodes = {}
            for i, rows in found.items():
                above = {path: row for row, (_, path) in enumerate(expansions[i].frontier)}
                expansions[i].take(_legal(rows, expansions[i], contexts[i]))
                if expansions[i].frontier:
                    nodes[i] = [(path[-1], above[path[:-1]]) for _, path in expansions[i].frontier]
            if self._levels is not None:
                self._levels.ran(depth)
            if nodes and not self._pays(depth, {i: expansions[i] for i in nodes}, states):
                break
            found = self._run_level(nodes, states)
        self._lanes.rollback()
        return [
            expansion.tree(context.tokens[-1], self.name)
            for expansion, context in zip(expansions, contexts, strict=True)
        ]

    def observe(self, states: Sequence[EagleState], records: Sequence[StepRecord]) -> None:
        """Learns what levels bring; tokens and features of the step come with the next context."""
        if self._levels is None:
            return
        for state, record in zip(states, records, strict=True):
            sources, path = record.draft.sources, record.verdict.path
            mine = [not sources or sources[node - 1] == self.name for node in path[1:]]
            depths = range(1, 1 + len(state.promised))  # of the entries of `mine` below the root's child
            self._levels.learn(state.promised, [depth < len(mine) and mine[depth] for depth in depths])
            state.promised = []
        self._levels.verified(sum(len(record.verdict.path) for record in records))

    # the parts of a draft; lanes are numbered as in the arguments of `propose`

    def _pays(self, depth: int, growing: Mapping[int, Expansion], states: Sequence[EagleState]) -> bool:
        """Whether to go on below ``depth``; notes what every lane's next level promises."""
        if self._levels is None:
            return True
        promised = {i: sum(exp(logp) for logp, _ in expansion.frontier) for i, expansion in growing.items()}
        if not self._levels.pays(depth + 1, list(promised.values())):
            return False
        for i, share in promised.items():
            states[i].promised.append(share)
        return True

    def _take_in(self, state: EagleState, context: DraftContext) -> None:
        """Queues the target's features of the tokens that were committed since the last time."""
        known = self._lanes.cache.length(state.lane) + state.waiting
        new = len(context.tokens) - 1 - known
        if new <= 0:
            return
        given = [context.features.get(layer, ()) for layer in self.head.feature_layers]
        if min(map(len, given)) < new:
            raise ValueError(
                f"{new} tokens were committed since the last draft, but the features of layers {self.feature_layers} "
                f"came for {min(map(len, given))}"
            )
        weight = self.head.fc.weight
        side_by_side = torch.cat([rows[-new:] for rows in given], dim=1)  # [n, F * h_t]
        state.pending.append(side_by_side.to(weight.device, weight.dtype))

    def _rows(self, state: EagleState, context: DraftContext, count: int) -> CommittedRows:
        """Takes the first ``count`` waiting rows."""
        features = torch.cat(state.pending) if len(state.pending) > 1 else state.pending[0]  # [n, F * h_t]
        state.pending = [features[count:]] if count < len(features) else []
        start = self._lanes.cache.length(state.lane) + 1
        return CommittedRows(context.tokens[start : start + count], features[:count])

    def _read_ahead(self, state: EagleState, context: DraftContext, leave: int) -> None:
        """Runs waiting rows in chunks until no more than ``leave`` are left."""
        while state.waiting > leave:
            rows = self._rows(state, context, min(CHUNK, state.waiting - leave))
            self._lanes.read({state.lane: rows})

    def _expansion(self, state: EagleState, context: DraftContext, budget: int) -> Expansion:
        check_budget(budget)
        depth = self.depth if context.max_depth is None else min(self.depth, context.max_depth)
        return Expansion(budget, self.width, depth if state.waiting else 0)

    def _roots(
        self, growing: Sequence[int], states: Sequence[EagleState], contexts: Sequence[DraftContext]
    ) -> dict[int, list[Candidates]]:
        """Reads what waits, the root last: what may follow it, of every lane that may grow."""
        if not growing:
            return {}
        for i in growing:
            self._read_ahead(states[i], contexts[i], leave=CHUNK)
        rows = {states[i].lane: self._rows(states[i], contexts[i], states[i].waiting) for i in growing}
        found = _checked(self._lanes.read(rows, self._wanted))
        return {i: found[states[i].lane] for i in growing}

    def _run_level(
        self, nodes: Mapping[int, Sequence[tuple[int, int]]], states: Sequence[EagleState]
    ) -> dict[int, list[Candidates]]:
        """Runs the frontiers of the lanes that still grow: what may follow every node, in frontier order."""
        if not nodes:
            return {}
        found = _checked(self._lanes.extend({states[i].lane: level for i, level in nodes.items()}, self._wanted))
        return {i: found[states[i].lane] for i in nodes}


def _checked(found: dict[int, list[Candidates]]) -> dict[int, list[Candidates]]:
    if any(isnan(row[0][1]) for rows in found.values() for row in rows):
        raise ValueError("the head's probabilities are not numbers")
    return found


def _legal(rows: Sequence[Candidates], expansion: Expansion, context: DraftContext) -> Sequence[Candidates]:
    """Candidates below each frontier node that the lane's grammar allows."""
    grammar = context.grammar
    if grammar is None:
        return rows
    return [
        [(token, logp) for token, logp in row if grammar.allows(path, token)]
        for (_, path), row in zip(expansion.frontier, rows, strict=True)
    ]
