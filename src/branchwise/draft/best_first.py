"""Growing one draft tree best-first from candidates that are asked for node by node.

Knows how to spend a budget. Does not know where candidates come from, what they cost or whether their estimates are
any good: that is the business of the sources (ngram.py, recycling.py) and of whoever mixes them (mixed.py).
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: tokens drafted below the root, in order; ``()`` is the root itself
Path = tuple[int, ...]
#: a token that may follow a path, the estimate that the target produces it there, and the name of the source
Candidate = tuple[int, float, str]
#: path and least useful estimate -> candidates; those of a lower estimate may be left out
Expand = Callable[[Path, float], Iterable[Candidate]]

#: a node whose score is below this share of 1 / budget all but never finds a place in the tree (measured: the last of
#: 33 nodes has a score of 0.002 in one tree of twenty, 0.008 in most)
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Growth:
    """A grown tree in node order; entry 0 is the root. Scores never rise along the order.

    Attributes:
        tokens: token of every node.
        parents: parent of every node, -1 for the root.
        scores: estimated probability that the node will be accepted, 1 for the root.
        sources: name of the source of every node, "" for the root.
    """

    tokens: list[int]
    parents: list[int]
    scores: list[float]
    sources: list[str]


def check_budget(budget: int) -> None:
    """Raises a ValueError unless there is room for the root."""
    if budget < 1:
        raise ValueError(f"a draft tree needs a budget of at least 1 node (the root), got {budget}")


def grow(
    root: int, budget: int, max_depth: int | None, vocab_size: int, expand: Expand, width: int | None = None
) -> Growth:
    """The tree of at most ``budget`` nodes with the largest sum of scores, as far as the estimates are right.

    The expected number of accepted nodes is the sum over nodes of the probability that the whole path to the node is
    accepted, and a path is never likelier than its prefix. So taking the likeliest candidate first, as DDTree and
    OPT-Tree (Wang et al. 2025, section 3) do, is optimal for every budget at once: any prefix of the node order is the
    best smaller tree. ``expand`` is called once per node that may still have children, never for the last one.

    Args:
        root: last committed token.
        budget: most nodes, root included.
        max_depth: deepest node allowed, or None.
        vocab_size: candidates outside ``[0, vocab_size)`` are dropped.
        expand: candidates below a path; tokens distinct, estimates in [0, 1], in any order.
        width: most children of a node; 1 grows a chain.

    Raises:
        ValueError: ``budget`` is below 1.
    """
    check_budget(budget)
    tokens, parents, scores, sources = [root], [-1], [1.0], [""]
    if budget == 1:
        return Growth(tokens, parents, scores, sources)
    paths: list[Path] = [()]
    # (negated score, age, parent, token, source), best first: of two equal scores the one found first goes first. Those
    # before `node` are in the tree; those behind the last place will find none and are dropped
    queue: list[tuple[float, int, int, int, str]] = []
    places = budget - 1
    least_score = LEAST_SHARE / budget
    age = 0
    for node in range(places):
        path, score = paths[node], scores[node]
        if max_depth is None or len(path) < max_depth:
            least = least_score / score
            candidates = expand(path, least)
            if width is not None:
                candidates = heapq.nlargest(width, candidates, key=lambda candidate: candidate[1])
            for token, estimate, source in candidates:
                if estimate < least or not 0 <= token < vocab_size:
                    continue
                negated = -score * estimate
                if len(queue) == places:
                    if negated >= queue[-1][0]:
                        continue
                    queue.pop()
                age += 1
                insort(queue, (negated, age, node, token, source))
        if node == len(queue):
            break
        negated, _, parent, token, source = queue[node]
        tokens.append(token)
        parents.append(parent)
        scores.append(-negated)
        sources.append(source)
        paths.append((*paths[parent], token))
    return Growth(tokens, parents, scores, sources)
