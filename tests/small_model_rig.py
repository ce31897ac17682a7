"""What tests of drafting models share: drafters of all kinds, trees as they grow, their cache against a rebuilt one."""

from __future__ import annotations

from typing import Any

import torch

from branchwise.draft import DrafterSource, MixedDrafter, NgramSource, RecyclingSource, SmallModelDrafter
from branchwise.draft.asking import AskRule
from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree

SHAPE = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0)]
KINDS: dict[str, dict[str, Any]] = {
    "dynamic": {"depth": 3, "width": 3},
    "best_first": {"depth": 4, "width": 2},
    "static": {"shape": SHAPE},
    "chain": {},
    "sampled": {"depth": 3, "width": 2},
}


class Always(AskRule):
    """Asks in every step, or in a given pattern."""

    def __init__(self, pattern: str = "y") -> None:
        super().__init__()
        self._pattern, self._step = pattern, 0

    def wants(self, promised, unread=0) -> bool:
        self._step += 1
        return self._pattern[(self._step - 1) % len(self._pattern)] == "y"


def small(model: Any, kind: str, **more: Any) -> SmallModelDrafter:
    return SmallModelDrafter(model, tree=kind, **{**KINDS[kind], **more})


def mixed_with(drafter: Any, pattern: str = "y") -> MixedDrafter:
    """N-grams, recycling and ``drafter``, which is asked in the steps that the pattern marks with y."""
    return MixedDrafter([NgramSource(), RecyclingSource(), DrafterSource(drafter)], ask=Always(pattern))


def paths_of(tree: TokenTree) -> dict[tuple[int, ...], int]:
    """Path of tokens below the root -> node."""
    return {tuple(tree.tokens[i] for i in tree.path(node)[1:]): node for node in range(1, len(tree))}


def cut(tree: TokenTree, nodes: int) -> TokenTree:
    """The first nodes of a tree: as it was before it grew."""
    return TokenTree(tree.tokens[:nodes], tree.parents[:nodes])


class CacheChecked:
    """A drafter that compares its small model's cache with a rebuilt one after every step.

    Args:
        drafter: the one under test.
        small_model: its `SmallModelDrafter`.
        lane_of: state -> the small model's lane and all its committed tokens.
        tolerance: largest difference of rows.
    """

    def __init__(self, drafter: Any, small_model: SmallModelDrafter, lane_of: Any, tolerance: float = 1e-8) -> None:
        self._drafter, self._small, self._lane_of, self._tolerance = drafter, small_model, lane_of, tolerance
        self.checked = 0
        self.lengths: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, states, contexts, budgets):
        self._contexts = {id(state): context for state, context in zip(states, contexts, strict=True)}
        self.check(states)
        return self._drafter.propose(states, contexts, budgets)

    def check(self, states) -> None:
        model = self._small._lanes.model
        model.cache.check_integrity()
        for state in states:
            lane, tokens = self._lane_of(state, self._contexts[id(state)])
            length = model.length(lane.number)
            assert length <= len(tokens) - 1, "the root's row is not in the cache"
            self.lengths.append(length - (len(tokens) - 1))
            if length == 0:
                continue
            fresh = HuggingFaceTarget(model.model)
            other = fresh.open()
            fresh.prefill(other, [*tokens[:length], 0])
            for layer in range(len(model.windows)):
                for mine, theirs in zip(
                    model.cache.rows(lane.number, layer), fresh.cache.rows(other, layer), strict=True
                ):
                    common = min(mine.shape[1], theirs.shape[1])
                    torch.testing.assert_close(
                        mine[:, -common:], theirs[:, -common:], rtol=self._tolerance, atol=self._tolerance
                    )
            self.checked += 1
