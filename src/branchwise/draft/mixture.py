"""What several sources say about the next token, blended, and what each of them turned out to be worth.

Knows evidence and weights. Does not know when a source is worth asking, nor any model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Candidate, Expand, Path, grow
from .calibration import Calibration
from .grammar import within_grammar
from .interpolation import TrustWeights
from .protocol import DraftContext
from .source import CandidateSource, Evidence, SourceState

#: evidence that gives a token less than this share of the least useful estimate is not added up
CRUMB = 0.25
#: while learning, estimates below this are left out
LEAST_LEARNED = 0.002
#: how far down an accepted path is learned from: a step that accepts more has nothing new to say about it
LEARNED_DEPTH = 8
#: last tokens of a text that a path is seen behind; no source looks further back from there
TAIL = 8

#: evidence with the weight and the number of its kind among the kinds of all sources, and the source's name
Found = tuple[float, int, Evidence, str]
_WEIGHT: Callable[[Found], float] = itemgetter(0)


@dataclass
class MixedState:
    """One lane.

    Attributes:
        sources: the states of its sources, in their order.
        asked: whether the sources that cost forwards take part in this step.
        free: the tree of the others, while a step is open for which there was a choice.
        tail: the last tokens of the text that this step's tree continues.
        heard: a mixture's own notes on who speaks, by what that depends on.
    """

    sources: list[SourceState]
    asked: bool = False
    free: DraftTree | None = None
    tail: list[int] = field(default_factory=list)
    heard: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Voice:
    """One source among all.

    Attributes:
        index: its number.
        source: itself.
        first_kind: number of its first kind of evidence among the kinds of all sources.
        costs: whether it is only heard in steps in which the sources that cost forwards are asked.
    """

    index: int
    source: CandidateSource
    first_kind: int
    costs: bool


class Mixture:
    """All evidence at a node in one order, the most trusted kind first, blended and corrected.

    A token gains from every piece of evidence that names it (see `TrustWeights`); the correction is `Calibration`'s.
    Both are learned from what the target produced, shared by all lanes.

    Args:
        sources: in the order in which equally trusted ones speak.
        costly: numbers of those that cost forwards.
        width: most children of a node; 1 grows chains.
    """

    def __init__(self, sources: Sequence[CandidateSource], costly: Sequence[int], width: int | None) -> None:
        self.trust = TrustWeights([weight for source in sources for weight in source.trust])
        self.calibration = Calibration()
        self.width = width
        self.voices: list[Voice] = []
        first_kind = 0
        for index, source in enumerate(sources):
            self.voices.append(Voice(index, source, first_kind, index in costly))
            first_kind += len(source.trust)

    def grow(self, state: MixedState, context: DraftContext, budget: int) -> DraftTree:
        """The best-first tree; node order is best-first too, so any prefix of the nodes is the best smaller tree."""
        expand: Expand = partial(self.candidates, state)
        if context.grammar is not None:
            expand = within_grammar(context.grammar, expand)
        growth = grow(context.tokens[-1], budget, context.max_depth, context.vocab_size, expand, self.width)
        tree = TokenTree(growth.tokens, growth.parents)
        return DraftTree.deterministic(tree, growth.sources[1:], growth.scores[1:])

    def candidates(self, state: MixedState, path: Path, least: float) -> list[Candidate]:
        """What may follow ``path``, with estimates; tokens surely below ``least`` may be left out."""
        estimates, credit = _blend(self._evidence(state, path), least)
        return self.calibration.correct(estimates, credit)

    def learn(self, state: MixedState, tokens: Sequence[int]) -> None:
        """Learns what the evidence along ``tokens``, which the target produced, was worth."""
        for depth, token in enumerate(tokens[:LEARNED_DEPTH]):
            found = self._evidence(state, tuple(tokens[:depth]))
            for candidate, estimate in _blend(found, LEAST_LEARNED)[0].items():
                self.calibration.learn(estimate, candidate == token)
            self.trust.learn([(kind, weights.get(token, 0.0) / total) for _, kind, (_, weights, total), _ in found])

    def _evidence(self, state: MixedState, path: Path) -> list[Found]:
        """All evidence at a node, the most trusted first."""
        weights = self.trust.weights
        found: list[Found] = []
        for voice in self.voices:
            if state.asked or not voice.costs:
                found += [
                    (weights[kind := voice.first_kind + evidence[0]], kind, evidence, voice.source.name)
                    for evidence in voice.source.evidence(state.sources[voice.index], path)
                ]
        if len(found) > 1:
            found.sort(key=_WEIGHT, reverse=True)
        return found


def _blend(found: Sequence[Found], least: float) -> tuple[dict[int, float], dict[int, str]]:
    """Estimate of every token whose estimate may reach ``least``, and the most trusted source that names it."""
    estimates: dict[int, float] = {}
    credit: dict[int, str] = {}
    left = 1.0
    crumb = CRUMB * least
    for trust, _, (_, weights, total), name in found:
        decides = left * trust
        scale = decides / total
        for token, weight in weights.items():
            share = scale * weight
            if share < crumb:
                break
            if token in estimates:
                estimates[token] += share
            else:
                estimates[token] = share
                credit[token] = name
        left -= decides
        if left < least:
            break
    return estimates, credit
