"""Several candidate sources, one tree, one budget.

Knows how much each kind of evidence is worth. Does not know how a source comes by it, nor any model.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .asking import AskRule
from .best_first import Candidate, Path
from .mixture import TAIL, MixedState
from .native_mixture import mixture_of
from .protocol import DraftContext, StepRecord
from .source import CandidateSource

#: a node of the free sources that is more likely than not stays in the tree whatever a costly source says
SURE = 0.5


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
        self._ask = AskRule() if ask is None else ask
        self._drawing = next((i for i, source in enumerate(sources) if source.name in drawing), None)
        self._costly = [
            i for i, source in enumerate(sources) if getattr(source, "costs_forwards", False) or i == self._drawing
        ]
        self.feature_layers = tuple(sorted({layer for source in sources for layer in source.feature_layers}))
        self._mixture = mixture_of(sources, self._costly, width)

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
        for state, context in zip(states, contexts, strict=True):
            state.asked, state.tail = False, context.tokens[-TAIL:]
        for index in set(range(len(self.sources))).difference(self._costly):
            self._begin(index, states, contexts, budgets)
        free = self._drafts(states, contexts, budgets)
        choice = max(budgets) > 1
        unread = self._unread(states, contexts)
        ask = choice and self._ask.wants([sum(draft.scores) for draft in free], unread)
        for state, draft in zip(states, free, strict=True):
            state.asked, state.free = ask, draft if choice else None
        drafts = free
        if ask:
            began = self._ask.clock()
            drafts = self._full_drafts(states, contexts, budgets, free)
            self._ask.asked(self._ask.clock() - began, unread)
        else:
            for index in self._costly:
                # `costs_forwards` promises the method, which is no part of the protocol
                self.sources[index].skip([state.sources[index] for state in states], contexts)  # type: ignore[attr-defined]
        self._ask.drafted()
        return drafts

    def begin(self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Opens a step: lets every source read what is new, all lanes at once."""
        for state, context in zip(states, contexts, strict=True):
            state.asked, state.tail = True, context.tokens[-TAIL:]
        for index in range(len(self.sources)):
            self._begin(index, states, contexts, budgets)

    def _begin(
        self, index: int, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> None:
        self.sources[index].begin([state.sources[index] for state in states], contexts, budgets)

    def _full_drafts(
        self,
        states: Sequence[MixedState],
        contexts: Sequence[DraftContext],
        budgets: Sequence[int],
        free: Sequence[DraftTree],
    ) -> list[DraftTree]:
        """The trees of all sources."""
        left = [_nodes_left(*lane) for lane in zip(budgets, free, strict=True)]
        for index in self._costly:
            self._begin(index, states, contexts, left)
        drafts = list(free) if self._costly == [self._drawing] else self._drafts(states, contexts, budgets)
        if self._drawing is not None:
            source, inner = self.sources[self._drawing], [state.sources[self._drawing] for state in states]
            # `samples` promises the method
            drafts = source.complete(inner, contexts, budgets, drafts)  # type: ignore[attr-defined]
        return drafts

    def _unread(self, states: Sequence[MixedState], contexts: Sequence[DraftContext]) -> int:
        """Tokens of the lanes that a costly source has not begun with."""
        return sum(
            len(context.tokens)
            for state, context in zip(states, contexts, strict=True)
            for index in self._costly
            # of a `DrafterSource`, the only kind that begins late
            if not getattr(state.sources[index], "is_started", True)
        )

    def _drafts(
        self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        return [self._mixture.grow(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def candidates(self, state: MixedState, path: Path, least: float) -> list[Candidate]:
        """What may follow ``path``, with estimates; tokens surely below ``least`` may be left out."""
        return self._mixture.candidates(state, path, least)

    def observe(self, states: Sequence[MixedState], records: Sequence[StepRecord]) -> None:
        """Learns what the evidence along the accepted path was worth, then informs every source."""
        self._ask.verified()
        for state, record in zip(states, records, strict=True):
            nodes = record.verdict.path
            tokens = [*(record.draft.tree.tokens[node] for node in nodes[1:]), record.verdict.bonus]
            self._mixture.learn(state, tokens)
            if state.free is not None:
                accepted = len(nodes) - 1
                free = _matched(state.free.tree, tokens)
                self._ask.learn(sum(state.free.scores), free, accepted if state.asked else None)
                state.free = None
        for index, source in enumerate(self.sources):
            source.absorb([state.sources[index] for state in states], records)


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
