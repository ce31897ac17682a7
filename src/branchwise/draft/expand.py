"""Growing dynamic trees level by level from a model's own probabilities: expand, then rerank.

Knows log-probabilities of candidates and a budget. Does not know what computes them: a small model or a head.

The tree is that of EAGLE-2 (Li et al. 2024, section 4): the ``width`` likeliest nodes of a level are expanded, all
candidates ever seen are ranked by the log-probability of their whole path, and the best ones make the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Path


@dataclass
class Expansion:
    """One lane's tree while it grows.

    Args:
        budget: most nodes of the finished tree, root included.
        width: nodes expanded per level.
        max_depth: deepest node allowed.

    Attributes:
        candidates: every candidate so far, in order of discovery: log-probability of the path, and the path.
        frontier: paths to expand next, at most ``width`` of them.
    """

    budget: int
    width: int
    max_depth: int
    candidates: list[tuple[float, Path]] = field(default_factory=list)
    frontier: list[tuple[float, Path]] = field(default_factory=lambda: [(0.0, ())])

    def take(self, children: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Takes in the candidates below every frontier node, in frontier order, and picks the next frontier.

        Args:
            children: per frontier node its candidates: token and log-probability given the node.
        """
        level: list[tuple[float, Path]] = []
        for (above, path), row in zip(self.frontier, children, strict=True):
            level.extend((above + logp, (*path, token)) for token, logp in row)
        self.candidates.extend(level)
        self.frontier = sorted(level, key=lambda candidate: -candidate[0])[: self.width]
        if not self.frontier or len(self.frontier[0][1]) >= self.max_depth or not self._can_still_matter():
            self.frontier = []

    def _can_still_matter(self) -> bool:
        """Whether a child of the frontier could still be among the best: no path is likelier than its prefix."""
        wanted = self.budget - 1
        if len(self.candidates) < wanted:
            return True
        worst_kept = sorted((logp for logp, _ in self.candidates), reverse=True)[wanted - 1]
        return self.frontier[0][0] > worst_kept

    def tree(self, root: int, source: str) -> DraftTree:
        """The best candidates as a draft; a parent comes before its children also when their probabilities tie."""
        best = sorted(self.candidates, key=lambda candidate: (-candidate[0], len(candidate[1])))[: self.budget - 1]
        tokens, parents = [root], [-1]
        node_of: dict[Path, int] = {(): 0}
        for _, path in best:
            node_of[path] = len(tokens)
            tokens.append(path[-1])
            parents.append(node_of[path[:-1]])
        scores = [exp(min(logp, 0.0)) for logp, _ in best]
        return DraftTree.deterministic(TokenTree(tokens, parents), source, scores)
