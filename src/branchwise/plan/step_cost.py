"""Seconds of one step of the loop: drafting, the target's forward, and the host's work in between.

Lookup drafters cost the host's time alone. One that runs a model (a small one, a head, the target's first layers) grows
its trees level by level: one forward per depth, over the nodes of that depth that get children; the first also reads
the tokens that the last step accepted. Knows counts of nodes; knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .acceptance import Acceptance, HostSeconds
from .forward_cost import ForwardCost, ForwardSeconds, Lanes


@dataclass(frozen=True)
class StepCost:
    """Where the time of a step goes.

    Attributes:
        draft: forwards of a model that drafts.
        forward: the target's.
        host: this library's own work, lane after lane: drafting without a model, laws, the rule, the cache.
    """

    draft: float
    forward: ForwardSeconds
    host: float

    @property
    def total(self) -> float:
        """Of the step."""
        return self.draft + self.forward.total + self.host

    @property
    def bound(self) -> str:
        """What takes most of it."""
        if self.host >= max(self.draft, self.forward.total):
            return "host"
        return "draft" if self.draft > self.forward.total else self.forward.bound


class StepModel:
    """Costs of steps.

    Args:
        target: cost of the target's forwards.
        acceptance: of the drafter; gives the shape of its trees.
        drafter: cost of the forwards of a model that drafts, or None.
        with_host: whether the host's time counts, as far as the acceptance file knows it.
    """

    def __init__(
        self, target: ForwardCost, acceptance: Acceptance, drafter: ForwardCost | None = None, with_host: bool = True
    ) -> None:
        self.target = target
        self.acceptance = acceptance
        self.drafter = drafter
        self._with_host = with_host

    def uniform(self, batch: int, budget: int, context: float) -> StepCost:
        """A step in which every lane has the same tree and context."""
        return StepCost(
            draft=self.draft_seconds([(budget, context, batch)]),
            forward=self.target.seconds([Lanes(budget, context, batch)]),
            host=batch * self.host_seconds(budget).total,
        )

    def host_seconds(self, budget: int) -> HostSeconds:
        """Per lane; none where the host's time does not count."""
        return self.acceptance.host_seconds(budget) if self._with_host else HostSeconds(0.0, 0.0)

    def draft_seconds(self, lanes: Sequence[tuple[int, float, int]]) -> float:
        """Forwards that draft.

        Args:
            lanes: budget, context and number of lanes that are alike.
        """
        if self.drafter is None:
            return 0.0
        levels: list[list[Lanes]] = []
        for budget, context, count in lanes:
            for depth, width in enumerate(self.acceptance.level_widths(budget)):
                rows = width if depth else self.acceptance.expected_tokens(budget)
                if depth == len(levels):
                    levels.append([])
                levels[depth].append(Lanes(rows, context + depth, count))
        return sum(self.drafter.seconds(level).total for level in levels)
