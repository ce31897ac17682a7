"""Texts replayed without a model: recorded or invented drafts, any budget, and a clock that reads a cost curve.

A text is a list of positions; at each of them stands the tree that a drafter would propose there and the path in it
that is right. Where a step ends, the next one begins, so that every budget writes the same text.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from branchwise.decode.statistics import StepSeconds
from branchwise.tree import TokenTree
from branchwise.tune.cost_table import Column, CostTable
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

#: the token of a node is its number, so any other token stands for "not in the tree"
ELSEWHERE = 999


@dataclass(frozen=True)
class Position:
    """What a drafter proposes at one place of a text.

    Attributes:
        parents: of the drafted nodes 1, 2, ...
        scores: the drafter's own estimates of the same nodes; empty when it tells none.
        path: right nodes, root first.
        chances: of the drafted nodes to be right, where they are known.
    """

    parents: tuple[int, ...]
    scores: tuple[float, ...]
    path: tuple[int, ...]
    chances: tuple[float, ...] = ()

    def draft(self, budget: int) -> DraftTree:
        """The first nodes of the tree."""
        nodes = min(budget, len(self.parents) + 1)
        tree = TokenTree(range(nodes), (-1, *self.parents[: nodes - 1]))
        return DraftTree.deterministic(tree, "replay", self.scores[: nodes - 1])

    def verdict(self, draft: DraftTree) -> Verdict:
        """The verdict on these nodes or some of them."""
        path = [0]
        for token in self.path[1:]:
            children = [child for child in draft.tree.children(path[-1]) if draft.tree.tokens[child] == token]
            if not children:
                return Verdict(tuple(path), token)
            path += children
        return Verdict(tuple(path), ELSEWHERE)

    def tokens(self, draft: DraftTree) -> float:
        """What these nodes give: the expectation where it is known, else what they do give."""
        if not self.chances:
            return len(self.verdict(draft).path)
        return 1.0 + sum(self.chances[token - 1] for token in draft.tree.tokens[1:])


def recorded_texts() -> dict[str, list[Position]]:
    """What `bench/record_drafts.py` wrote, by category; nothing where it has not been run."""
    file = Path(__file__).parent / "tune" / "recorded_drafts.json"
    if not file.exists():
        return {}
    texts = json.loads(file.read_text(encoding="utf-8"))["texts"]
    return {category: [_position(row) for row in rows] for category, rows in texts.items()}


def _position(row: str) -> Position:
    parents, scores, path = row.split()
    pairs = [] if scores == "-" else [scores[at : at + 2] for at in range(0, len(scores), 2)]
    return Position(
        tuple(int(digit, 36) for digit in parents if digit != "-"),
        tuple((int(pair, 16) / 255) ** 2 for pair in pairs),
        tuple(int(digit, 36) for digit in path),
    )


def invented_text(chance: float, positions: int = 400, seed: int = 0, boast: float = 1.0, told: bool = True):
    r"""A best-first tree of 33 nodes with two children at every node, the first right with a chance, the second less.

    Args:
        chance: that the first child is right where its parent is; the second is with half of what is left, at most 0.2.
        positions: length of the text.
        seed: of what is right.
        boast: the drafter's estimates of a child are so many times too high (0.95 at most).
        told: whether it tells estimates at all.
    """
    ranks = (chance, min(0.2, (1 - chance) / 2) if chance else 0.0)
    parents, true, said, ahead = [], [1.0], [1.0], [(0, rank) for rank in (0, 1)]
    while len(parents) < 32:
        parent, rank = max(ahead, key=lambda item: (true[item[0]] * (ranks[item[1]] + 1e-9), -item[0]))
        ahead.remove((parent, rank))
        node = len(parents) + 1
        parents.append(parent)
        true.append(true[parent] * ranks[rank])
        said.append(said[parent] * min(0.95, boast * (ranks[rank] or 0.1)))
        ahead += [(node, 0), (node, 1)]
    coins = random.Random(seed)
    text = []
    for _ in range(positions):
        path = [0]
        while True:
            children = [node for node, parent in enumerate(parents, start=1) if parent == path[-1]]
            luck = coins.random()
            right = [child for rank, child in enumerate(children) if sum(ranks[:rank]) <= luck < sum(ranks[: rank + 1])]
            if not right:
                break
            path += right
        text.append(Position(tuple(parents), tuple(said[1:]) if told else (), tuple(path), tuple(true[1:])))
    return text


@dataclass(frozen=True)
class Machine:
    """Seconds of forwards and drafts by nodes.

    Attributes:
        forward: of a forward.
        draft: of drafting under a budget; 1 is plain decoding.
    """

    forward: Callable[[int], float]
    draft: Callable[[int], float]

    def table(self, nodes: Sequence[int] = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)) -> CostTable:
        """What `branchwise tune` would find."""
        return CostTable((Column(256, tuple(nodes), tuple(self.forward(count) for count in nodes)),))


def cheap_draft(budget: int) -> float:
    """Lookup: a fraction of a millisecond."""
    return 0.0001 if budget == 1 else 0.0003 + 0.000012 * budget


def costly_draft(budget: int) -> float:
    """A small model: a forward per level."""
    return 0.0001 if budget == 1 else 0.004 * min(5, budget.bit_length())


def through(points: dict[int, float]) -> Callable[[int], float]:
    """Straight lines between milliseconds by nodes."""
    return lambda nodes: float(np.interp(nodes, list(points), list(points.values()))) / 1000


def in_steps_of(rows: int, milliseconds: float) -> Callable[[int], float]:
    """A kernel that computes whole tiles of so many nodes."""
    return lambda nodes: milliseconds * math.ceil(nodes / rows) / 1000


#: of several kinds, as measured here and elsewhere
FORWARDS = {
    "gpu, flat": through({1: 20, 33: 24, 64: 28}),
    "cpu, short context": through({1: 39, 5: 44, 9: 48, 17: 52, 33: 68, 64: 110}),
    "cpu, long context, steep": through({1: 63, 5: 80, 9: 95, 17: 134, 33: 207, 64: 350}),
    "cpu, int8, a knee": through({1: 11.5, 8: 11.6, 16: 18, 32: 30, 64: 58}),
    "tiles of 16": in_steps_of(16, 12.0),
    "every node costs": through({1: 10, 64: 330}),
}


class Replay:
    """Runs a policy over a text that begins again when it ends.

    Args:
        text: positions.
        machine: what steps cost.
        seed, noise: spread of the seconds the policy is told; one step in a hundred takes three times as long. What it
            is judged by has no noise, and no luck either where chances are known.
    """

    def __init__(self, text: Sequence[Position], machine: Machine, seed: int = 0, noise: float = 0.1) -> None:
        self.text, self.machine = text, machine
        self._coins, self._noise = random.Random(seed), noise
        self._at = 0
        self.tokens = self.seconds = 0.0
        self.budgets: list[int] = []
        self.nodes: list[int] = []

    def run(self, policy, tokens: int) -> float:
        """Tokens per second over so many tokens."""
        before = self.tokens, self.seconds
        while self.tokens < before[0] + tokens:
            self.step(policy)
        return (self.tokens - before[0]) / (self.seconds - before[1])

    def step(self, policy, context: float = 300.0) -> None:
        """One step of one lane."""
        position = self.text[self._at % len(self.text)]
        shares = hasattr(policy, "ceilings")
        (budget,) = policy.ceilings([0], context) if shares else policy.choose(1)
        draft = position.draft(budget)
        if shares:
            (draft,) = policy.divide([0], [draft])
        verdict = position.verdict(draft)
        drafting, forward = self.machine.draft(budget), self.machine.forward(len(draft.tree))
        self.tokens += position.tokens(draft)
        self.seconds += drafting + forward
        self._at += len(verdict.path)
        self.budgets.append(budget)
        self.nodes.append(len(draft.tree))
        seconds = step_of(forward * self._wobble(), drafting * self._wobble())
        if shares:
            policy.learn_shares([0], [draft], [verdict], seconds)

    def _wobble(self) -> float:
        hiccup = 3.0 if self._noise and self._coins.random() < 0.01 else 1.0
        return hiccup * math.exp(self._coins.gauss(0, self._noise))


def step_of(seconds: float, draft: float = 0.0) -> StepSeconds:
    """A step that is all forward and drafting."""
    return StepSeconds(draft=draft, forward=seconds, verify=0.0, commit=0.0, other=0.0)
