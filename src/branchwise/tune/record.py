"""What a drafter's word is worth: how often nodes were right whose parent was right, by what was said of them.

A score is a product along a path, and so is every error in it. Here the factors are corrected, one edge at a time: of
every node on an accepted path it is known which of its children is right, whether they were verified or not (the bonus
token says it). Edges of which about the same was said share one record, whatever the lane; a lane whose edges have
lately done better or worse than that has a factor of its own.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from ..tree import TokenTree
from ..verify.proposal import DraftTree

#: edges said to be right with probabilities between two of these share a record
LEVELS = (0.03, 0.07, 0.15, 0.25, 0.4, 0.55, 0.7, 0.82, 0.91, 0.97)
#: of a drafter that tells no scores: chance of a node's first child; each further one has half of the one before
UNSCORED = 0.5
#: weight of earlier steps in a level's record, and in a lane's
LEVEL_MEMORY, LANE_MEMORY = 0.99, 0.93
#: right edges that were expected and came before anything is known: of a level, and of a lane
LEVEL_PRIOR, LANE_PRIOR = 1.0, 3.0
#: no edge is surer than this
SUREST = 0.99


@dataclass
class _Sums:
    """Decayed: right edges that were expected, and those that came."""

    expected: float
    right: float

    def add(self, memory: float, expected: float, right: float) -> None:
        self.expected = memory * self.expected + expected
        self.right = memory * self.right + right

    @property
    def factor(self) -> float:
        return self.right / self.expected


class EdgeRecord:
    """Corrects what drafters say, by what came of it."""

    def __init__(self) -> None:
        self._levels = [_Sums(LEVEL_PRIOR, LEVEL_PRIOR) for _ in range(len(LEVELS) + 1)]
        self._lanes: dict[int, _Sums] = {}

    def gains(self, lane: int, draft: DraftTree) -> list[float]:
        """Probability of every drafted node that its whole path is right; never above its parent's."""
        factors = [level.factor for level in self._levels]
        own = self.lane_factor(lane)
        gains = [1.0]
        for parent, said in zip(draft.tree.parents[1:], said_of_edges(draft), strict=True):
            gains.append(gains[parent] * min(SUREST, said * factors[bisect(LEVELS, said)] * own))
        return gains[1:]

    def lane_factor(self, lane: int) -> float:
        """How much better than recorded the lane's edges have been lately."""
        sums = self._lanes.get(lane)
        return 1.0 if sums is None else sums.factor

    def learn(self, lane: int, draft: DraftTree, right: Sequence[int], bonus: int) -> None:
        """Books one step.

        Args:
            lane: whose.
            draft: as the drafter made it.
            right: the accepted path, in the draft's own node numbers.
            bonus: the token behind it.
        """
        tree, said = draft.tree, said_of_edges(draft)
        expected, came = [0.0] * len(self._levels), [0.0] * len(self._levels)
        for at, node in enumerate(right):
            following = right[at + 1] if at + 1 < len(right) else tree.child_with(node, bonus)
            for child in tree.children(node):
                level = bisect(LEVELS, said[child - 1])
                expected[level] += said[child - 1]
                came[level] += child == following
        corrected = sum(level.factor * one for level, one in zip(self._levels, expected, strict=True))
        sums = self._lanes.setdefault(lane, _Sums(LANE_PRIOR, LANE_PRIOR))
        sums.add(LANE_MEMORY, corrected + (1 - LANE_MEMORY) * LANE_PRIOR, sum(came) + (1 - LANE_MEMORY) * LANE_PRIOR)
        for known, one, hits in zip(self._levels, expected, came, strict=True):
            if one:
                known.add(LEVEL_MEMORY, one, hits)

    def forget(self, lane: int) -> None:
        """The lane has left."""
        self._lanes.pop(lane, None)


def said_of_edges(draft: DraftTree) -> list[float]:
    """What the drafter says of every drafted node, given that its parent is right."""
    tree = draft.tree
    if not draft.scores:
        return [UNSCORED ** (1 + tree.children(parent).index(node)) for node, parent in _edges(tree)]
    scores = (1.0, *draft.scores)
    return [min(1.0, scores[node] / scores[parent]) if scores[parent] > 0 else 0.0 for node, parent in _edges(tree)]


def _edges(tree: TokenTree) -> Sequence[tuple[int, int]]:
    return list(enumerate(tree.parents))[1:]
