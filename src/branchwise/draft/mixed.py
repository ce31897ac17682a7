"""Several candidate sources, one tree, one budget.

Knows how much each kind of evidence is worth. Does not know how a source comes by it, nor any model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .asking import AskRule
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
#: a node of the free sources that is more likely than not stays in the tree whatever a costly source says
SURE = 0.5
#: how far down an accepted path is learned from: a step that accepts more has nothing new to say about it
LEARNED_DEPTH = 8


#: evidence with the weight and the number of its kind among the kinds of all sources, and the source's name
Found = tuple[float, int, Evidence, str]
_WEIGHT: Callable[[Found], float] = itemgetter(0)


@dataclass
class MixedState:
    """One lane.

    Attributes:
        sources: the states of its sources, in their order.
        found: evidence by path, the most trusted first: what was drafted from is learned from.
        asked: whether the sources that cost forwards take part in this step.
        free: the tree of the others, while a step is open for which there was a choice.
    """

    sources: list[SourceState]
    found: dict[Path, list[Found]] = field(default_factory=dict)
    asked: bool = False
    free: DraftTree | None = None


class MixedDrafter:
    """Asks every source at every node it expands, and lets the best candidates of all of them share one tree.

    So an n-gram continuation can hang below a recycled token and the other way round, and a token that several sources
    name at one place is one node. All evidence at a node is put in one order, the most trusted kind first, and blended
    (see `TrustWeights`); a token gains from every piece of evidence that names it. What each kind is worth is learned
    from what the target produced along the accepted paths, and so is the correction of the blend (see `Calibration`).
    Both are shared by all lanes and kept for as long as the drafter is.

    Sources that cost nothing are asked first. Those that run a model are asked in the steps in which `AskRule` expects
    more tokens per second with them than without (for all lanes or for none, as its forwards serve all), and are told
    how many nodes the others leave. A source that samples puts its draws beside and below the others' children, which
    come first at every node.

    With one source this is that source's own drafter.

    Args:
        sources: at least one, names distinct. Another drafter takes part through `DrafterSource`.
        name: the drafter's own name.
        width: most children of a node picked without chance; 1 drafts chains.
        ask: decides when to ask sources that cost forwards.

    Raises:
        ValueError: no source, two of one name, or two that sample.
    """

    def __init__(
        self,
        sources: Sequence[CandidateSource],
        name: str = "mixed",
        width: int | None = None,
        ask: AskRule | None = None,
    ) -> None:
        if not sources:
            raise ValueError("a mixed drafter needs at least one source")
        names = [source.name for source in sources]
        if len(set(names)) < len(names):
            raise ValueError(f"the sources of a mixed drafter need distinct names, got {names}")
        drawing = [source.name for source in sources if getattr(source, "samples", False)]
        if len(drawing) > 1:
            raise ValueError(f"one source of a mixed drafter may sample, got {drawing}")
        self.name = name
        self.sources = tuple(sources)
        self.is_deterministic = not drawing
        self.shape = "chain" if width == 1 and not drawing else "tree"
        self._width = width
        self._ask = AskRule() if ask is None else ask
        self._drawing = next((i for i, source in enumerate(sources) if source.name in drawing), None)
        self._costly = [
            i for i, source in enumerate(sources) if getattr(source, "costs_forwards", False) or i == self._drawing
        ]
        self.feature_layers = tuple(sorted({layer for source in sources for layer in source.feature_layers}))
        self._trust = TrustWeights([weight for source in sources for weight in source.trust])
        #: every source: its number, its evidence, the number of its first kind, and its name
        self._voices: list[tuple[int, Callable[[SourceState, Path], Sequence[Evidence]], int, str]] = []
        first_kind = 0
        for index, source in enumerate(sources):
            self._voices.append((index, source.evidence, first_kind, source.name))
            first_kind += len(source.trust)
        self._free_voices = [voice for voice in self._voices if voice[0] not in self._costly]
        self._calibration = Calibration()

    def start(self, context: DraftContext) -> MixedState:
        """Starts every source on the lane."""
        return MixedState([source.start(context) for source in self.sources])

    def finish(self, state: MixedState) -> None:
        """Tells every source that wants to know that the lane has ended."""
        for source, source_state in zip(self.sources, state.sources, strict=True):
            if hasattr(source, "finish"):
                source.finish(source_state)

    def propose(
        self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Best-first trees; node order is best-first too, so any prefix of the nodes is the best smaller tree."""
        if not self._costly:
            self.begin(states, contexts, budgets)
            return self._drafts(states, contexts, budgets)
        for state in states:
            state.asked = False
        for index in set(range(len(self.sources))).difference(self._costly):
            self._begin(index, states, contexts, budgets)
        free = self._drafts(states, contexts, budgets)
        choice = max(budgets) > 1
        ask = choice and self._ask.wants([sum(draft.scores) for draft in free])
        for state, draft in zip(states, free, strict=True):
            state.asked, state.free = ask, draft if choice else None
        drafts = self._full_drafts(states, contexts, budgets, free) if ask else free
        if not ask:
            for index in self._costly:
                # `costs_forwards` promises the method, which is no part of the protocol
                self.sources[index].skip([state.sources[index] for state in states], contexts)  # type: ignore[attr-defined]
        self._ask.drafted()
        return drafts

    def begin(self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Opens a step: lets every source read what is new, all lanes at once."""
        for state in states:
            state.asked = True
        for index in range(len(self.sources)):
            self._begin(index, states, contexts, budgets)

    def _begin(
        self, index: int, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> None:
        for state in states:
            state.found = {}
        self.sources[index].begin([state.sources[index] for state in states], contexts, budgets)

    def _full_drafts(
        self,
        states: Sequence[MixedState],
        contexts: Sequence[DraftContext],
        budgets: Sequence[int],
        free: Sequence[DraftTree],
    ) -> list[DraftTree]:
        """The trees of all sources."""
        began = self._ask.clock()
        left = [_nodes_left(*lane) for lane in zip(budgets, free, strict=True)]
        for index in self._costly:
            self._begin(index, states, contexts, left)
        drafts = list(free) if self._costly == [self._drawing] else self._drafts(states, contexts, budgets)
        if self._drawing is not None:
            source, inner = self.sources[self._drawing], [state.sources[self._drawing] for state in states]
            # `samples` promises the method
            drafts = source.complete(inner, contexts, budgets, drafts)  # type: ignore[attr-defined]
        self._ask.asked(self._ask.clock() - began)
        return drafts

    def _drafts(
        self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        return [self._draft(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def _draft(self, state: MixedState, context: DraftContext, budget: int) -> DraftTree:
        expand: Expand = partial(self.candidates, state)
        if context.grammar is not None:
            expand = within_grammar(context.grammar, expand)
        growth = grow(context.tokens[-1], budget, context.max_depth, context.vocab_size, expand, self._width)
        tree = TokenTree(growth.tokens, growth.parents)
        return DraftTree.deterministic(tree, growth.sources[1:], growth.scores[1:])

    def _evidence(self, state: MixedState, path: Path) -> list[Found]:
        """All evidence at a node, the most trusted first."""
        found = state.found.get(path)
        if found is not None:
            return found
        weights = self._trust.weights
        found = []
        for index, evidence_of, first_kind, name in self._voices if state.asked else self._free_voices:
            found += [
                (weights[kind := first_kind + evidence[0]], kind, evidence, name)
                for evidence in evidence_of(state.sources[index], path)
            ]
        if len(found) > 1:
            found.sort(key=_WEIGHT, reverse=True)
        state.found[path] = found
        return found

    def _blend(self, found: Sequence[Found], least: float) -> tuple[dict[int, float], dict[int, str]]:
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

    def candidates(self, state: MixedState, path: Path, least: float) -> list[Candidate]:
        """What may follow ``path``, with estimates; tokens surely below ``least`` may be left out."""
        estimates, credit = self._blend(self._evidence(state, path), least)
        return self._calibration.correct(estimates, credit)

    def observe(self, states: Sequence[MixedState], records: Sequence[StepRecord]) -> None:
        """Learns what the evidence along the accepted path was worth, then informs every source."""
        self._ask.verified()
        for state, record in zip(states, records, strict=True):
            nodes = record.verdict.path
            tokens = [*(record.draft.tree.tokens[node] for node in nodes[1:]), record.verdict.bonus]
            for depth, token in enumerate(tokens[:LEARNED_DEPTH]):
                self._learn(state, tuple(tokens[:depth]), token)
            if state.free is not None:
                accepted = len(nodes) - 1
                free = _matched(state.free.tree, tokens)
                self._ask.learn(sum(state.free.scores), free, accepted if state.asked else None)
                state.free = None
        for index, source in enumerate(self.sources):
            source.absorb([state.sources[index] for state in states], records)

    def _learn(self, state: MixedState, path: Path, token: int) -> None:
        found = self._evidence(state, path)
        for candidate, estimate in self._blend(found, LEAST_LEARNED)[0].items():
            self._calibration.learn(estimate, candidate == token)
        self._trust.learn([(kind, weights.get(token, 0.0) / total) for _, kind, (_, weights, total), _ in found])


def _nodes_left(budget: int, free: DraftTree) -> int:
    """What a costly source may fill: all but the nodes that have a place in the tree whatever it says."""
    return max(2, budget - sum(score >= SURE for score in free.scores)) if budget > 1 else 1


def _matched(tree: TokenTree, tokens: Sequence[int]) -> int:
    """How many of the tokens a tree would have had, from its root on."""
    node = 0
    for depth, token in enumerate(tokens):
        child = tree.child_with(node, token)
        if child is None:
            return depth
        node = child
    return len(tokens)
