"""Growing dynamic trees level by level from a model's own probabilities: expand, then rerank.

Knows log-probabilities of candidates and a budget. Does not know what computes them: a small model or a head.

The tree is that of EAGLE-2 (Li et al. 2024, section 4): the ``width`` likeliest nodes of a level are expanded, all
candidates ever seen are ranked by the log-probability of their whole path, and the best ones make the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from operator import itemgetter

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Path

#: the tokens that must follow a path, because a grammar allows nothing else
Forced = Callable[[Path], Sequence[int]]


@dataclass
class Expansion:
    """One lane's tree while it grows.

    Args:
        budget: most nodes of the finished tree, root included.
        width: nodes expanded per level.
        max_depth: deepest node allowed.
        forwards: most calls of `take`, or None.
        forced: tokens that follow a path without anybody being asked. A frontier path then ends behind them, so that it
            may be several nodes longer than the path whose candidates were taken.

    Attributes:
        candidates: log-probability of a path, and the path, of all that may still find a place in the tree.
        frontier: paths to expand next, at most ``width`` of them.
    """

    budget: int
    width: int
    max_depth: int
    forwards: int | None = None
    forced: Forced | None = None
    candidates: list[tuple[float, Path]] = field(default_factory=list)
    frontier: list[tuple[float, Path]] = field(default_factory=lambda: [(0.0, ())])

    def __post_init__(self) -> None:
        self.frontier = self._followed(self.frontier) if self.budget > 1 else []

    def take(self, children: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Takes in the candidates below every frontier node, in frontier order, and picks the next frontier.

        Args:
            children: per frontier node its candidates: token and log-probability given the node.
        """
        least = self._keep_best()
        level: list[tuple[float, Path]] = []
        for (above, path), row in zip(self.frontier, children, strict=True):
            level.extend((above + logp, (*path, token)) for token, logp in row if above + logp >= least)
        self.candidates.extend(level)
        followed = self._followed(self._next(level))
        if self.forwards is not None:
            self.forwards -= 1
        self.frontier = followed if self.forwards != 0 else []

    def _next(self, level: list[tuple[float, Path]]) -> list[tuple[float, Path]]:
        """The best nodes of the level that was just seen, less those whose children could not make the tree."""
        best = sorted(level, key=_LOGP, reverse=True)[: self.width]
        least = self._keep_best()
        return [candidate for candidate in best if candidate[0] > least]

    def _keep_best(self) -> float:
        """Drops the candidates that have no place in the tree any more, and puts the others in order.

        Returns:
            what a path must exceed to find a place, and so must its prefixes: no path is likelier than those.
        """
        wanted = self.budget - 1
        self.candidates.sort(key=_rank)
        del self.candidates[wanted:]
        return self.candidates[-1][0] if len(self.candidates) == wanted else -inf

    def _followed(self, frontier: Iterable[tuple[float, Path]]) -> list[tuple[float, Path]]:
        """The frontier with every path led on through its forced tokens, less what may have no children."""
        followed = []
        for logp, path in frontier:
            for token in self.forced(path)[: self.max_depth - len(path)] if self.forced else ():
                path = (*path, token)
                self.candidates.append((logp, path))
            if len(path) < self.max_depth:
                followed.append((logp, path))
        return followed

    def tree(self, root: int, source: str) -> DraftTree:
        """The best candidates as a draft; a parent comes before its children also when their probabilities tie."""
        return ranked_tree(root, self.candidates, self.budget, source)


_LOGP: Callable[[tuple[float, Path]], float] = itemgetter(0)


def _rank(candidate: tuple[float, Path]) -> tuple[float, int]:
    """The likeliest first; of equal ones the shorter, so that parents come before their children."""
    logp, path = candidate
    return -logp, len(path)


def ranked_tree(root: int, candidates: Iterable[tuple[float, Path]], budget: int, source: str) -> DraftTree:
    """The best ``budget - 1`` paths as a draft.

    Args:
        root: last committed token.
        candidates: log-probability and path, all different; with every path all its prefixes, none less likely.
        budget: most nodes, root included.
        source: name of who proposes them.
    """
    best = sorted(candidates, key=_rank)[: budget - 1]
    tokens, parents = [root], [-1]
    node_of: dict[Path, int] = {(): 0}
    for _, path in best:
        node_of[path] = len(tokens)
        tokens.append(path[-1])
        parents.append(node_of[path[:-1]])
    scores = [exp(min(logp, 0.0)) for logp, _ in best]
    return DraftTree.deterministic(TokenTree(tokens, parents), source, scores)
