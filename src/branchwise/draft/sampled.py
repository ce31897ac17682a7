"""Sampled drafts: children drawn by chance from a drafter's estimates, with the very vector they were drawn from.

Knows how to spend a budget on draws. Does not know where the estimates come from: any `MixedDrafter` gives them.

Which node is expanded next may depend on everything drawn so far; a child that was drawn is never dropped or moved. So
the number of children is fixed before a node's first draw, and they all count against the budget.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from ..tree import TokenTree
from ..verify.coins import SeededCoins
from ..verify.draw import sample_children
from ..verify.proposal import ONE_HOT, DraftTree, Proposal
from .best_first import Path, check_budget
from .forbidden import forbidden
from .mixed import MixedDrafter
from .mixture import MixedState
from .protocol import DraftContext, StepRecord

#: estimates below this are left out of a vector: their tokens would almost never be drawn
LEAST = 0.002


class SampledDrafter:
    """Draws up to ``width`` children without replacement at every node it expands, the likeliest node first.

    Args:
        drafter: gives the estimates; its sources learn as usual.
        width: children drawn per node.
        sharpness: estimates are raised to this power before they are normalised; above 1 the likely tokens come first
            more often, below 1 less.

    Raises:
        ValueError: ``width`` is below 1, ``sharpness`` is not positive, or the drafter samples itself.
    """

    is_deterministic = False

    def __init__(self, drafter: MixedDrafter, width: int = 3, sharpness: float = 1.0) -> None:
        if width < 1:
            raise ValueError(f"a sampled drafter draws at least one child per node, got width {width}")
        if not sharpness > 0:
            raise ValueError(f"sharpness must be > 0, got {sharpness}")
        if not getattr(drafter, "is_deterministic", True):
            raise ValueError("a source that samples gives no estimates to draw from; mix it without 'sampled'")
        self.name = "sampled"
        self.feature_layers = drafter.feature_layers
        self.width = width
        self.shape = "chain" if width == 1 else "tree"
        self.sharpness = sharpness
        self._drafter = drafter

    def start(self, context: DraftContext) -> MixedState:
        """Starts the estimating drafter on the lane."""
        return self._drafter.start(context)

    def propose(
        self, states: Sequence[MixedState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """One sampled tree per lane; a node's draws use the lane's own drafting coins."""
        self._drafter.begin(states, contexts, budgets)
        return [self._draft(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def finish(self, state: MixedState) -> None:
        """Hands the end of a lane on."""
        self._drafter.finish(state)

    def observe(self, states: Sequence[MixedState], records: Sequence[StepRecord]) -> None:
        """The estimates learn from the step."""
        self._drafter.observe(states, records)

    def _draft(self, state: MixedState, context: DraftContext, budget: int) -> DraftTree:
        check_budget(budget)
        coins = context.coins if context.coins is not None else SeededCoins().drafting()
        tokens, parents, scores = [context.tokens[-1]], [-1], [1.0]
        paths: list[Path] = [()]
        proposals: list[Proposal] = []
        # (negated score, node): the likeliest node is expanded next
        waiting: list[tuple[float, int]] = [(-1.0, 0)]
        while waiting and len(tokens) < budget:
            negated, node = heapq.heappop(waiting)
            path = paths[node]
            if context.max_depth is not None and len(path) >= context.max_depth:
                continue
            forced = None if context.grammar is None else context.grammar.forced(path)
            vector = self._vector(state, context, path) if forced is None else None
            proposal: Proposal = ONE_HOT
            shares = {} if forced is None else {forced: 1.0}
            if vector is not None:
                drawn, proposal = sample_children(vector, min(self.width, budget - len(tokens)), coins)
                shares = {child: float(vector[child]) for child in drawn}
            for child, share in shares.items():
                score = -negated * share
                heapq.heappush(waiting, (-score, len(tokens)))
                tokens.append(child)
                parents.append(node)
                paths.append((*path, child))
                scores.append(score)
                proposals.append(proposal)
        sources = (self.name,) * len(proposals)
        return DraftTree(TokenTree(tokens, parents), tuple(proposals), sources, tuple(scores[1:]))

    def _vector(self, state: MixedState, context: DraftContext, path: Path) -> Tensor | None:
        """The probability vector ``[V]`` of the children of ``path``.

        What the grammar or the request's processors are known to forbid is left out of it before anything is drawn.
        """
        candidates = {
            token: estimate**self.sharpness
            for token, estimate, _ in self._drafter.candidates(state, path, LEAST)
            if estimate > 0.0 and 0 <= token < context.vocab_size
        }
        if context.grammar is not None:
            candidates = {token: weight for token, weight in candidates.items() if context.grammar.allows(path, token)}
        banned = forbidden(context, path)
        if banned is not None:
            candidates = {token: weight for token, weight in candidates.items() if not banned[token]}
        total = sum(candidates.values())
        if not total > 0.0:
            return None
        vector = torch.zeros(context.vocab_size, dtype=torch.float64)
        vector[list(candidates)] = torch.tensor(list(candidates.values()), dtype=torch.float64) / total
        return vector
