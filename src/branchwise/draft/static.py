"""Trees of one fixed shape, filled from ranked candidates. Knows ranks, not where the candidates come from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..tree import StaticShape, TokenTree
from ..verify.proposal import DraftTree
from .best_first import Candidate, Expand, Path, check_budget
from .grammar import within_grammar
from .mixed import MixedDrafter
from .mixture import MixedState
from .protocol import DraftContext, StepRecord
from .source import CandidateSource

#: candidates are asked for down to this estimate; below it a rank is as good as empty
LEAST = 1e-4


class StaticDrafter:
    """Drafts the same shape at every step, as Medusa, EAGLE-1 and Sequoia do: which ranks go below which node.

    The candidates of a node are ranked by their estimates, and the shape says which ranks are taken. Where a node has
    fewer candidates, what the shape wants of the others stays empty, and so does everything below. Under a smaller
    budget the likeliest nodes are kept.

    Args:
        source: where the candidates come from: one source, or a mixed drafter with several.
        shape: which ranks at which node.

    Raises:
        ValueError: a source samples.
    """

    name = "static"

    def __init__(self, source: CandidateSource | MixedDrafter, shape: StaticShape) -> None:
        self.shape = shape
        self._drafter = source if isinstance(source, MixedDrafter) else MixedDrafter([source], name=source.name)
        if not self._drafter.is_deterministic:
            raise ValueError("a source that samples ranks no candidates; give the static drafter one that does not")
        self.feature_layers = self._drafter.feature_layers

    def start(self, context: DraftContext) -> MixedState:
        """Starts the sources on the lane."""
        return self._drafter.start(context)

    def propose(
        self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """The shape, as far as it can be filled; likeliest nodes first."""
        self._drafter.begin(states, contexts, budgets)
        return [self._draft(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def observe(self, states: Sequence[MixedState], records: Sequence[StepRecord]) -> None:
        """The sources learn from the step."""
        self._drafter.observe(states, records)

    def finish(self, state: MixedState) -> None:
        """The sources are told that the lane ends."""
        self._drafter.finish(state)

    def _draft(self, state: MixedState, context: DraftContext, budget: int) -> DraftTree:
        check_budget(budget)
        expand: Expand = partial(self._drafter.candidates, state)
        if context.grammar is not None:
            expand = within_grammar(context.grammar, expand)
        filled = fill(self.shape, expand, context.vocab_size, context.max_depth)
        # no node is likelier than its parent; among equally likely ones the order stays, parents first
        filled.sort(key=lambda node: -node[1])
        tokens, parents = [context.tokens[-1]], [-1]
        node_of: dict[Path, int] = {(): 0}
        kept = filled[: budget - 1]
        for path, _, _ in kept:
            node_of[path] = len(tokens)
            tokens.append(path[-1])
            parents.append(node_of[path[:-1]])
        sources, scores = [source for _, _, source in kept], [score for _, score, _ in kept]
        return DraftTree.deterministic(TokenTree(tokens, parents), sources, scores)


def fill(
    shape: StaticShape, expand: Expand, vocab_size: int, max_depth: int | None = None
) -> list[tuple[Path, float, str]]:
    """Token paths of the shape's nodes that have a candidate, parents before children.

    Args:
        shape: which ranks at which node.
        expand: path and least useful estimate -> candidates below the path, in any order.
        vocab_size: candidates outside ``[0, vocab_size)`` are passed over.
        max_depth: deepest node, or None.

    Returns:
        for each node its path of tokens, the product of the estimates along it, and the source of its last token.
    """
    filled: list[tuple[Path, float, str]] = []
    at: dict[int, tuple[Path, float]] = {0: ((), 1.0)}  # nodes of the shape that are filled
    ranked: dict[int, list[Candidate]] = {}
    for node in range(1, len(shape)):
        parent = shape.parents[node]
        if parent not in at:
            continue
        path, score = at[parent]
        if max_depth is not None and len(path) >= max_depth:
            continue
        if parent not in ranked:
            candidates = [row for row in expand(path, LEAST) if row[1] >= LEAST and 0 <= row[0] < vocab_size]
            ranked[parent] = sorted(candidates, key=lambda row: -row[1])
        if shape.ranks[node] < len(ranked[parent]):
            token, estimate, source = ranked[parent][shape.ranks[node]]
            at[node] = (*path, token), score * estimate
            filled.append((*at[node], source))
    return filled
