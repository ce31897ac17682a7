"""A target, a drafter and a rule that take time and compute nothing, for the real `Engine` on a simulated clock.

The engine, its session, admission, pacing and shared budget are the ones that serve; only the model is put on here.
A token is the number of a node in the tree that was measured. What a drafted node has in front of it is decided by a
die, over all children it had when it was measured: so acceptance is the measured one whatever the engine cuts off the
trees, and a right child that was cut off shows in the bonus token, as it does in earnest.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..cache import Snapshot
from ..draft.protocol import DraftContext, StepRecord
from ..target.protocol import TargetOutput
from ..tree import TokenTree
from ..verify.proposal import DraftTree
from ..verify.rule import Coins, Law, Verdict
from .acceptance import Acceptance
from .forward_cost import Lanes
from .step_cost import StepModel


class SimulatedClock:
    """Seconds that pass when something says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds


class SimulatedTarget:
    """Counts rows instead of keeping them, and spends the seconds that a forward would take.

    Args:
        model: what steps cost.
        clock: to spend them on.
    """

    device = torch.device("cpu")
    context_limit: int | None = None
    solo_beyond: int | None = None

    def __init__(self, model: StepModel, clock: SimulatedClock) -> None:
        self._model = model
        self._clock = clock
        self._lengths: dict[int, int] = {}
        self._opened = 0
        self.vocab_size = model.acceptance.largest
        self._logits = torch.zeros(1, 1).expand(self.vocab_size, self.vocab_size)  # [N, V]; no rule here reads them

    def open(self, expected_rows: int = 0, longest: int | None = None) -> int:
        """See `Target.open`."""
        lane, self._opened = self._opened, self._opened + 1
        self._lengths[lane] = 0
        return lane

    def prefill(self, lane: int, prompt: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.prefill`."""
        return self.feed(lane, prompt[:-1]) if len(prompt) > 1 else {}

    def feed(self, lane: int, tokens: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.feed`."""
        read = [Lanes(len(tokens), self._lengths[lane])]
        self._clock.spend(self._model.target.seconds(read, with_logits=False).total)
        self._lengths[lane] += len(tokens)
        return {}

    def forward(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...] = ()) -> dict[int, TargetOutput]:
        """See `Target.forward`. The host's work after the forward is spent here, too."""
        lanes = [Lanes(len(tree), self._lengths[lane]) for lane, tree in trees.items()]
        host = sum(self._model.host_seconds(len(tree)).other for tree in trees.values())
        self._clock.spend(self._model.target.seconds(lanes).total + host)
        return {lane: TargetOutput(self._logits) for lane in trees}

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """See `Target.commit`."""
        for lane, path in paths.items():
            self._lengths[lane] += len(path)

    def rollback(self) -> None:
        """See `Target.rollback`; rows in flight are not kept."""

    def clear(self, lane: int) -> None:
        """See `Target.clear`."""
        self._lengths[lane] = 0

    def scrub(self, lane: int) -> None:
        """See `Target.scrub`; there is nothing to be NaN."""

    def free(self, lane: int) -> None:
        """See `Target.free`."""
        del self._lengths[lane]

    def length(self, lane: int) -> int:
        """See `Target.length`."""
        return self._lengths[lane]

    def depth_limit(self, lane: int) -> int | None:
        """See `Target.depth_limit`."""
        return None

    def snapshot(self, lane: int) -> Snapshot:
        """See `Target.snapshot`: no prefix is shared here."""
        raise NotImplementedError("prompts of a simulation have nothing in common; make its engine with prefix_bytes=0")

    def restore(self, lane: int, snapshot: Snapshot, tokens: Sequence[int]) -> None:
        """See `Target.restore`."""
        raise NotImplementedError("see snapshot")

    def limit_rows(self, rows: int) -> None:
        """See `Target.limit_rows`; the engine's own pool counts rows."""


class SimulatedDrafter:
    """Drafts the likeliest nodes of the measured acceptance, their chances as scores, and spends what that takes.

    Args:
        model: what steps cost.
        clock: to spend it on.
    """

    name = "simulated"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, model: StepModel, clock: SimulatedClock) -> None:
        self._model = model
        self._clock = clock

    def start(self, context: DraftContext) -> None:
        """Nothing to remember."""

    def propose(
        self, states: Sequence[None], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """See `Drafter.propose`."""
        trees = [
            _tree(self._model.acceptance, budget, context.max_depth, context.tokens[-1])
            for context, budget in zip(contexts, budgets, strict=True)
        ]
        sizes = [len(draft.tree) for draft in trees]
        self._clock.spend(sum(self._model.host_seconds(size).draft for size in sizes))
        if self._model.drafter is not None:
            lanes = [(size, len(context.tokens), 1) for size, context in zip(sizes, contexts, strict=True)]
            self._clock.spend(self._model.draft_seconds(lanes))
        return trees

    def observe(self, states: Sequence[None], records: Sequence[StepRecord]) -> None:
        """Nothing to learn."""


class SimulatedRule:
    """Accepts a node as often as was measured.

    Args:
        acceptance: the measurement.
        seed: of its dice.
    """

    name = "simulated"

    def __init__(self, acceptance: Acceptance, seed: int) -> None:
        self._gains = acceptance.gains
        self._children = TokenTree(range(acceptance.largest), acceptance.parents).children
        self._chance = random.Random(seed)

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Walks down: of a node's children at most one is right, each with its chance over the node's."""
        tree, path, measured = draft.tree, [0], 0
        while right := self._right_child(measured):
            child = tree.child_with(path[-1], right)
            if child is None:
                break
            path.append(child)
            measured = right
        return Verdict(tuple(path), right)

    def _right_child(self, node: int) -> int:
        """Throws the die below a measured node; 0, the root's number, when nothing that was measured is right."""
        die = self._chance.random() * self._gains[node]
        for child in self._children(node):
            die -= self._gains[child]
            if die < 0:
                return child
        return 0


@lru_cache(maxsize=4096)
def _cut_tree(
    parents: tuple[int, ...], gains: tuple[float, ...], budget: int, max_depth: int | None, root: int
) -> DraftTree:
    number: dict[int, int] = {0: 0}
    depth, tokens, kept_parents = [0], [root], [-1]
    scores: list[float] = []
    for node in range(1, len(parents)):
        depth.append(depth[parents[node]] + 1)
        if len(kept_parents) < budget and (max_depth is None or depth[node] <= max_depth):
            number[node] = len(kept_parents)
            tokens.append(node)
            kept_parents.append(number[parents[node]])
            scores.append(gains[node])
    return DraftTree.deterministic(TokenTree(tokens, kept_parents), "simulated", scores)


def _tree(acceptance: Acceptance, budget: int, max_depth: int | None, root: int) -> DraftTree:
    height = acceptance.largest if max_depth is None else min(max_depth, acceptance.largest)
    return _cut_tree(acceptance.parents, acceptance.gains, budget, max(0, height), root)
