"""Several candidate sources, one tree, one budget.

Knows how much each kind of evidence is worth. Does not know how a source comes by it, nor any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Candidate, Expand, Path, grow
from .calibration import Calibration
from .grammar import within_grammar
from .interpolation import TrustWeights
from .protocol import DraftContext, StepRecord
from .source import CandidateSource, Evidence, SourceState

#: evidence that gives a token less than this share of the least useful estimate is not added up
CRUMB = 0.25
#: while learning, estimates below this are left out
LEAST_LEARNED = 0.002
#: how far down an accepted path is learned from: a step that accepts more has nothing new to say about it
LEARNED_DEPTH = 8


@dataclass
class MixedState:
    """One lane: the states of its sources, in their order."""

    sources: list[SourceState]


class MixedDrafter:
    """Asks every source at every node it expands, and lets the best candidates of all of them share one tree.

    So an n-gram continuation can hang below a recycled token and the other way round, and a token that several sources
    name at one place is one node. All evidence at a node is put in one order, the most trusted kind first, and blended
    (see `TrustWeights`); a token gains from every piece of evidence that names it. What each kind is worth is learned
    from what the target produced along the accepted paths, and so is the correction of the blend (see `Calibration`).
    Both are shared by all lanes and kept for as long as the drafter is.

    With one source this is that source's own drafter.

    Args:
        sources: at least one, names distinct. Another drafter takes part through `DrafterSource`.
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
        self._trust = TrustWeights([weight for source in sources for weight in source.trust])
        self._first_kind = [0]
        for source in sources[:-1]:
            self._first_kind.append(self._first_kind[-1] + len(source.trust))
        self._calibration = Calibration()

    def start(self, context: DraftContext) -> MixedState:
        """Starts every source on the lane."""
        return MixedState([source.start(context) for source in self.sources])

    def propose(
        self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Best-first trees; node order is best-first too, so any prefix of the nodes is the best smaller tree."""
        self.begin(states, contexts, budgets)
        return [self._draft(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def begin(self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Opens a step: lets every source read what is new, all lanes at once."""
        for index, source in enumerate(self.sources):
            source.begin([state.sources[index] for state in states], contexts, budgets)

    def _draft(self, state: MixedState, context: DraftContext, budget: int) -> DraftTree:
        expand: Expand = partial(self.candidates, state)
        if context.grammar is not None:
            expand = within_grammar(context.grammar, expand)
        growth = grow(context.tokens[-1], budget, context.max_depth, context.vocab_size, expand)
        tree = TokenTree(growth.tokens, growth.parents)
        return DraftTree.deterministic(tree, growth.sources[1:], growth.scores[1:])

    def _evidence(self, state: MixedState, path: Path) -> list[tuple[int, Evidence, str]]:
        """All evidence at a node with its kind's number among all sources' kinds, the most trusted first."""
        found = [
            (first_kind + evidence.kind, evidence, source.name)
            for source, source_state, first_kind in zip(self.sources, state.sources, self._first_kind, strict=True)
            for evidence in source.evidence(source_state, path)
        ]
        weights = self._trust.weights
        found.sort(key=lambda item: -weights[item[0]])
        return found

    def _blend(
        self, found: Sequence[tuple[int, Evidence, str]], least: float
    ) -> tuple[dict[int, float], dict[int, str]]:
        """Estimate of every token whose estimate may reach ``least``, and the most trusted source that names it."""
        estimates: dict[int, float] = {}
        credit: dict[int, str] = {}
        trust = self._trust.weights
        left = 1.0
        for kind, (_, weights, total), name in found:
            decides = left * trust[kind]
            scale = decides / total
            crumb = CRUMB * least / scale
            for token, weight in weights.items():
                if weight < crumb:
                    break
                if token in estimates:
                    estimates[token] += scale * weight
                else:
                    estimates[token] = scale * weight
                    credit[token] = name
            left -= decides
            if left < least:
                break
        return estimates, credit

    def candidates(self, state: MixedState, path: Path, least: float) -> list[Candidate]:
        """What may follow ``path``, with estimates; tokens surely below ``least`` may be left out."""
        estimates, credit = self._blend(self._evidence(state, path), least)
        return [(token, estimate, credit[token]) for token, estimate in self._calibration.correct(estimates.items())]

    def observe(self, states: Sequence[MixedState], records: Sequence[StepRecord]) -> None:
        """Learns what the evidence along the accepted path was worth, then informs every source."""
        for state, record in zip(states, records, strict=True):
            nodes = record.verdict.path
            tokens = [*(record.draft.tree.tokens[node] for node in nodes[1:]), record.verdict.bonus]
            for depth, token in enumerate(tokens[:LEARNED_DEPTH]):
                self._learn(state, tuple(tokens[:depth]), token)
        for index, source in enumerate(self.sources):
            source.absorb([state.sources[index] for state in states], records)

    def _learn(self, state: MixedState, path: Path, token: int) -> None:
        found = self._evidence(state, path)
        for candidate, estimate in self._blend(found, LEAST_LEARNED)[0].items():
            self._calibration.learn(estimate, candidate == token)
        self._trust.learn([(kind, weights.get(token, 0.0) / total) for kind, (_, weights, total), _ in found])
