"""A whole drafter as one candidate source among others: heads, a small model, an oracle.

Knows the drafter's trees. Does not know how it grows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..verify.proposal import DraftTree
from .best_first import Path
from .protocol import DraftContext, Drafter, DraftState, StepRecord
from .source import Evidence

#: kinds of evidence: how sure the drafter is of its first child, in quarters
SURENESS = 4


@dataclass
class DrafterSourceState:
    """One lane: the drafter's own state, and the children it drafted in this step with their conditional estimates."""

    inner: DraftState
    children: dict[Path, dict[int, float]] = field(default_factory=dict)


class DrafterSource:
    """Lets a drafter draft its own tree once per step and offers that tree's children, path by path.

    Below nodes of other sources the drafter has nothing to say. It observes the steps of the mixed trees.

    Args:
        drafter: must draft without chance, since the mixed tree's proposals are one-hot.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.feature_layers = drafter.feature_layers
        self.trust: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
        self._drafter = drafter

    def start(self, context: DraftContext) -> DrafterSourceState:
        """Starts the drafter on the lane."""
        return DrafterSourceState(self._drafter.start(context))

    def begin(
        self, states: Sequence[DrafterSourceState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> None:
        """Drafts, all lanes at once.

        Raises:
            ValueError: the drafter sampled a node.
        """
        drafts = self._drafter.propose([state.inner for state in states], contexts, budgets)
        for state, draft in zip(states, drafts, strict=True):
            if not draft.is_deterministic:
                raise ValueError(f"drafter {self.name!r} samples its drafts, so it cannot share a mixed tree")
            state.children = _children_by_path(draft)

    def evidence(self, state: DrafterSourceState, path: Path) -> list[Evidence]:
        """The drafter's children below ``path``."""
        weights = state.children.get(path)
        if not weights:
            return []
        kind = min(SURENESS - 1, int(next(iter(weights.values())) * SURENESS))
        return [Evidence(kind, weights, max(1.0, sum(weights.values())))]

    def absorb(self, states: Sequence[DrafterSourceState], records: Sequence[StepRecord]) -> None:
        """Shows the drafter the steps."""
        self._drafter.observe([state.inner for state in states], records)


def _children_by_path(draft: DraftTree) -> dict[Path, dict[int, float]]:
    """Estimates of a node given its parent; without scores the children of a node are taken as equally likely."""
    tree = draft.tree
    paths: list[Path] = [()]
    children: dict[Path, dict[int, float]] = {}
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        if draft.scores:
            above = draft.scores[parent - 1] if parent else 1.0
            share = draft.scores[node - 1] / above if above > 0.0 else 0.0
        else:
            share = 1.0 / len(tree.children(parent))
        if share > 0.0:
            children.setdefault(paths[parent], {})[tree.tokens[node]] = share
        paths.append((*paths[parent], tree.tokens[node]))
    return {path: dict(sorted(row.items(), key=lambda item: -item[1])) for path, row in children.items()}
