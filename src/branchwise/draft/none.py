"""Plain decoding as a drafter: the lone root. Knows nothing and needs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import check_budget
from .protocol import DraftContext, StepRecord


class NoneDrafter:
    """Proposes nothing, so that plain decoding runs through the same loop, one token per forward."""

    name = "none"
    shape = "chain"
    feature_layers: tuple[int, ...] = ()

    def start(self, context: DraftContext) -> None:
        """Nothing to remember."""

    def propose(
        self, states: Sequence[None], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Lone roots, whatever the budgets allow."""
        for budget in budgets:
            check_budget(budget)
        return [DraftTree.deterministic(TokenTree((context.tokens[-1],), (-1,))) for context in contexts]

    def observe(self, states: Sequence[None], records: Sequence[StepRecord]) -> None:
        """Nothing to learn."""
