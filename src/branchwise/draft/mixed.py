"""Several candidate sources, one tree, one budget.

Knows how much each source's word is worth. Does not know how a source comes by its candidates, nor any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Candidate, Path, grow
from .calibration import Calibration
from .protocol import DraftContext, StepRecord
from .source import CandidateSource, Claim, SourceState


@dataclass
class MixedState:
    """One lane: the states of its sources and what they claimed in the step in flight."""

    sources: list[SourceState]
    claims: dict[Path, list[Sequence[Claim]]] = field(default_factory=dict)


class MixedDrafter:
    """Asks every source at every node it expands, and lets the best candidates of all of them share one tree.

    So an n-gram continuation can hang below a recycled token and the other way round; a token that two sources propose
    at one place is one node. What makes the sources comparable is a `Calibration` each, learned from the children
    that were claimed below accepted nodes.

    Args:
        sources: at least one, names distinct. A source of a tree's candidates is anything that follows
            `CandidateSource`.
        name: the drafter's own name.
    """

    def __init__(self, sources: Sequence[CandidateSource], name: str = "mixed") -> None:
        if not sources:
            raise ValueError("a mixed drafter needs at least one source")
        names = [source.name for source in sources]
        if len(set(names)) < len(names):
            raise ValueError(f"the sources of a mixed drafter need distinct names, got {names}")
        self.name = name
        self.sources = tuple(sources)
        self.feature_layers = tuple(sorted({layer for source in sources for layer in source.feature_layers}))
        self._calibrations = [Calibration() for _ in sources]

    def start(self, context: DraftContext) -> MixedState:
        """Starts every source on the lane."""
        return MixedState([source.start(context) for source in self.sources])

    def propose(
        self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Best-first trees; node order is best-first too, so any prefix of the nodes is the best smaller tree."""
        for index, source in enumerate(self.sources):
            source.begin([state.sources[index] for state in states], contexts, budgets)
        return [self._draft(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def _draft(self, state: MixedState, context: DraftContext, budget: int) -> DraftTree:
        state.claims.clear()
        growth = grow(
            context.tokens[-1], budget, context.max_depth, context.vocab_size, lambda path: self._expand(state, path)
        )
        tree = TokenTree(growth.tokens, growth.parents)
        return DraftTree.deterministic(tree, growth.sources[1:], growth.scores[1:])

    def _expand(self, state: MixedState, path: Path) -> list[Candidate]:
        claims = [
            source.expand(source_state, path) for source, source_state in zip(self.sources, state.sources, strict=True)
        ]
        state.claims[path] = claims
        merged: dict[int, Candidate] = {}
        for source, calibration, claimed in zip(self.sources, self._calibrations, claims, strict=True):
            for token, claim in claimed:
                estimate = calibration.correct(claim)
                twin = merged.get(token)
                if twin is None:
                    merged[token] = (token, estimate, source.name)
                else:
                    merged[token] = _merge(twin, estimate, source.name)
        return list(merged.values())

    def observe(self, states: Sequence[MixedState], records: Sequence[StepRecord]) -> None:
        """Compares the claims along the accepted path with what the target produced, then informs every source."""
        for state, record in zip(states, records, strict=True):
            nodes = record.verdict.path
            tokens = [record.draft.tree.tokens[node] for node in nodes[1:]] + [record.verdict.bonus]
            for depth, token in enumerate(tokens):
                self._learn(state, tuple(tokens[:depth]), token)
        for index, source in enumerate(self.sources):
            source.absorb([state.sources[index] for state in states], records)

    def _learn(self, state: MixedState, path: Path, token: int) -> None:
        for source, source_state in zip(self.sources, state.sources, strict=True):
            source.learn(source_state, path, token)
        for calibration, claimed in zip(self._calibrations, state.claims.get(path, ()), strict=False):
            for candidate, claim in claimed:
                calibration.learn(claim, candidate == token)


def _merge(twin: Candidate, estimate: float, source: str) -> Candidate:
    """Two sources agree on a token: likelier than either alone; the surer one gets the credit."""
    token, other, name = twin
    return token, other + estimate - other * estimate, name if other >= estimate else source
