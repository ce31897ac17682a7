"""The drafter that is always right, for tests: it is told the future."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import check_budget
from .protocol import DraftContext, StepRecord

#: all tokens of a lane so far -> the tokens the target will produce next (as many as are known)
Future = Callable[[Sequence[int]], Sequence[int]]


class OracleDrafter:
    """Drafts what the target is known to produce, as one chain, with wrong side branches if asked.

    Args:
        future: what comes after the committed tokens, or whole known sequences (prompt and output) to read it from.
        branches: wrong siblings beside every right node, as far as budget and vocabulary reach.
        reach: most right nodes per tree, or None for as many as the budget allows.
    """

    name = "oracle"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, future: Future | Iterable[Sequence[int]], branches: int = 0, reach: int | None = None) -> None:
        self._future = future if callable(future) else future_from_sequences(future)
        self._branches = branches
        self._reach = reach

    def start(self, context: DraftContext) -> None:
        """Nothing to remember: the future depends on the tokens alone."""

    def propose(
        self, states: Sequence[None], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """One tree per lane; the right chain first at every depth."""
        return [self._draft(context, budget) for context, budget in zip(contexts, budgets, strict=True)]

    def _draft(self, context: DraftContext, budget: int) -> DraftTree:
        check_budget(budget)
        tokens, parents, scores = [context.tokens[-1]], [-1], [1.0]
        right = list(self._future(context.tokens))[: context.max_depth][: self._reach]
        parent = 0
        for token in right:
            wrong = [(token + step) % context.vocab_size for step in range(1, context.vocab_size)][: self._branches]
            level = [token, *wrong][: budget - len(tokens)]
            if not level:
                break
            chain = len(tokens)
            tokens += level
            parents += [parent] * len(level)
            scores += [1.0] + [0.0] * (len(level) - 1)
            parent = chain
        return DraftTree.deterministic(TokenTree(tokens, parents), self.name, scores[1:])

    def observe(self, states: Sequence[None], records: Sequence[StepRecord]) -> None:
        """Nothing to learn: it knew."""


def future_from_sequences(sequences: Iterable[Sequence[int]]) -> Future:
    """Reads the future from whole known sequences: the rest of the first one that begins with the tokens so far."""
    known = [list(sequence) for sequence in sequences]

    def future(tokens: Sequence[int]) -> list[int]:
        so_far = list(tokens)
        for sequence in known:
            if len(sequence) > len(so_far) and sequence[: len(so_far)] == so_far:
                return sequence[len(so_far) :]
        return []

    return future
