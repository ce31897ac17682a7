"""The drafter that is always wrong, for tests: full trees of changing shape in which no node is ever accepted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import check_budget
from .protocol import DraftContext, StepRecord

#: all tokens of a lane so far -> tokens that must not be proposed next, because the target may produce them
Avoid = Callable[[Sequence[int]], Iterable[int]]


class AdversaryDrafter:
    """Fills the whole budget with nodes the target will reject, in a different shape every step.

    Only children of the root can be accepted first, so it is enough that those are wrong. Three ways to make sure, the
    strongest first: ``avoid`` names what the target may produce (for example from a recorded output, so that everything
    else is wrong); ``pool`` names tokens the target never produces; with neither, the tokens the target liked least one
    step ago are used, which it almost surely likes no better now.

    Args:
        avoid: tokens that must not stand below the root.
        pool: the only tokens proposed.
        seed: of the shapes.
    """

    name = "adversary"
    feature_layers: tuple[int, ...] = ()
    #: different tokens used per tree when there is no pool
    LEAST_LIKED = 64

    def __init__(self, avoid: Avoid | None = None, pool: Iterable[int] | None = None, seed: int = 0) -> None:
        self._avoid = avoid
        self._pool = None if pool is None else sorted(set(pool))
        self._seed = seed

    def start(self, context: DraftContext) -> list[int]:
        """The tokens the target liked least one step ago; unknown at first, so the highest ids stand in for them."""
        return list(range(max(0, context.vocab_size - self.LEAST_LIKED), context.vocab_size))

    def propose(
        self, states: Sequence[list[int]], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """One random tree per lane, as large as the budget and the supply of distinct siblings allow."""
        return [self._draft(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def _draft(self, least_liked: list[int], context: DraftContext, budget: int) -> DraftTree:
        check_budget(budget)
        shapes = random.Random(f"{self._seed} {len(context.tokens)}")
        pool = self._pool if self._pool is not None else least_liked
        if self._pool is None and self._avoid is not None:
            pool = list(range(context.vocab_size))
        avoid = set() if self._avoid is None else set(self._avoid(context.tokens))
        tokens, parents, depth = [context.tokens[-1]], [-1], [0]
        supply = [[token for token in pool if token not in avoid]]  # per node: tokens its next children may take
        open_nodes = [0]
        while open_nodes and len(tokens) < budget:
            parent = shapes.choice(open_nodes)
            left = supply[parent]
            if not left or depth[parent] == context.max_depth:
                open_nodes.remove(parent)
                continue
            slot = shapes.randrange(len(left))
            left[slot], left[-1] = left[-1], left[slot]
            open_nodes.append(len(tokens))
            tokens.append(left.pop())
            parents.append(parent)
            depth.append(depth[parent] + 1)
            supply.append(list(pool[: self.LEAST_LIKED]))
        return DraftTree.deterministic(TokenTree(tokens, parents), self.name, (0.0,) * (len(tokens) - 1))

    def observe(self, states: Sequence[list[int]], records: Sequence[StepRecord]) -> None:
        """Notes what the target liked least at the end of the accepted path."""
        for least_liked, record in zip(states, records, strict=True):
            if record.output is not None:
                row = record.output.logits[record.verdict.path[-1]]
                fewest = min(self.LEAST_LIKED, max(1, row.shape[0] // 4))
                least_liked[:] = row.topk(fewest, largest=False).indices.tolist()
