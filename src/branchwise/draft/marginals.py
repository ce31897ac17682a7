r"""Marginals of the next tokens, one distribution per future position, and the best tree of their product.

Knows logits and a budget. Does not know what computes them: heads on one hidden state, or one forward over a block.

A drafter that guesses all positions at once says nothing about how they depend on each other, so a path's score is the
product of its tokens' marginals. The tree of the B best paths is found by a heap (DDTree, 2026, over the marginals of
DFlash): after a path come only its first child and its next sibling, both no better than the path itself.

                 root                          position 0: a .7  b .2  ...
               /      \                        position 1: c .6  d .3  ...
          a .7          b .2
         /    \           |                    order: a .70, ac .42, ad .21, b .20, bc .12
    ac .42    ad .21    bc .12

The dynamic tree of EAGLE-2 (expand by cumulative log-probability, then rerank) keeps the same paths here, since all
nodes of a level share one distribution.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from math import exp, isfinite

from torch import Tensor

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import Candidate, Path, check_budget, grow
from .grammar import within_grammar
from .protocol import DraftContext
from .top_tokens import likeliest_tokens

#: ranks fetched per position at first. A tree of 32 nodes over a trained head's marginals mostly needs fewer; a
#: position that turns out flat is fetched again, twice as far
FIRST_RANKS = 16


class Marginals:
    """One lane's distributions over the tokens of its next positions, read rank by rank.

    Made by `marginals_of`, which ranks the first tokens of all lanes at once. Later ranks are fetched when asked for.

    Attributes:
        depth: future positions, the first child of the root being position 0.
        vocab_size: ranks there are at each.
    """

    def __init__(
        self,
        logits: Tensor,
        ranked: list[list[tuple[int, float]]],
        token_ids: Sequence[int] | None,
    ) -> None:
        self.depth, self.vocab_size = logits.shape
        self._logits = logits  # [D, V]
        self._ranked = ranked
        self._token_ids = token_ids

    def at(self, position: int, rank: int) -> tuple[int, float]:
        """The token of this rank at a position, 0 being the likeliest, and its probability there.

        Raises:
            IndexError: the position or the rank does not exist.
        """
        if not (0 <= position < self.depth and 0 <= rank < self.vocab_size):
            raise IndexError(
                f"no rank {rank} at position {position}: {self.depth} positions of {self.vocab_size} tokens"
            )
        while rank >= len(self._ranked[position]):
            self._fetch(position)
        index, probability = self._ranked[position][rank]
        return index if self._token_ids is None else self._token_ids[index], probability

    def _fetch(self, position: int) -> None:
        """Doubles the ranks of a position. Of tokens that tie, those ranked before keep their ranks."""
        ranked = self._ranked[position]
        (row,) = likeliest_tokens(self._logits[position][None], min(self.vocab_size, 2 * len(ranked)))
        known = {token for token, _ in ranked}
        ranked.extend((token, exp(logp)) for token, logp in row if token not in known)


def marginals_of(logits: Tensor, token_ids: Sequence[int] | None = None) -> list[Marginals]:
    """Ranks the marginals of several lanes: one selection over all rows.

    Args:
        logits: ``[L, D, V]``, D positions of every lane.
        token_ids: the target's token id of each of the V entries; None when they are the same.

    Raises:
        ValueError: a row holds NaN or positive infinity, or no finite entry: the drafter's weights or its inputs are
            broken.
    """
    lanes, depth, vocab_size = logits.shape
    rows = logits.reshape(lanes * depth, vocab_size)
    likeliest = likeliest_tokens(rows, min(FIRST_RANKS, vocab_size))
    for row, candidates in enumerate(likeliest):
        if not isfinite(candidates[0][1]):
            lane, position = divmod(row, depth)
            raise ValueError(f"the drafter's logits are not finite (position {position} of lane {lane})")
    ranked = [[(token, exp(logp)) for token, logp in row] for row in likeliest]
    return [
        Marginals(logits[lane], ranked[at : at + depth], token_ids)
        for lane, at in enumerate(range(0, lanes * depth, depth))
    ]


def best_tree(marginals: Marginals, context: DraftContext, budget: int, source: str) -> DraftTree:
    """The best-first tree of the product distribution: exactly its ``budget - 1`` best paths, as nodes below the root.

    Node order is best-first too, so any prefix of the nodes is the best smaller tree, and a parent comes before its
    children also when their scores tie. A node of rank r at depth d comes after its d - 1 ancestors and r siblings, so
    no rank from ``budget - d`` on is ever asked for. Paths of probability 0 are left out.

    With a grammar in the context, illegal children are left out and what the grammar forces is drafted (see
    `draft.grammar`).

    Args:
        marginals: positions from the first child of the root on; those deeper than the context allows are not used.
        context: gives the root, the depth and the grammar.
        budget: most nodes, root included.
        source: name of the drafter.

    Raises:
        ValueError: ``budget`` is below 1.
    """
    check_budget(budget)
    if context.grammar is not None:
        return _legal_tree(marginals, context, budget, source)
    depth = marginals.depth if context.max_depth is None else min(marginals.depth, context.max_depth)
    tokens, parents, depths, scores = [context.tokens[-1]], [-1], [0], [1.0]
    # (negated score, age, parent, rank, token): of two equal scores the one found first goes first
    heap: list[tuple[float, int, int, int, int]] = []
    age = 0

    def push(parent: int, rank: int) -> None:
        nonlocal age
        token, probability = marginals.at(depths[parent], rank)
        score = scores[parent] * probability
        if score > 0.0:
            age += 1
            heapq.heappush(heap, (-score, age, parent, rank, token))

    if depth > 0 and budget > 1:
        push(0, 0)
    while heap:
        negated, _, parent, rank, token = heapq.heappop(heap)
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        scores.append(-negated)
        if len(tokens) == budget:
            break
        if depths[node] < depth:
            push(node, 0)
        if rank + 1 < marginals.vocab_size:
            push(parent, rank + 1)
    return DraftTree.deterministic(TokenTree(tokens, parents), source, scores[1:])


def _legal_tree(marginals: Marginals, context: DraftContext, budget: int, source: str) -> DraftTree:
    """The best-first tree under a grammar, from the ``budget`` likeliest tokens of each position."""

    def expand(path: Path, least: float) -> Iterator[Candidate]:
        if len(path) < marginals.depth:
            for rank in range(min(budget, marginals.vocab_size)):
                token, probability = marginals.at(len(path), rank)
                if probability < least:
                    break
                yield token, probability, source

    assert context.grammar is not None
    legal = within_grammar(context.grammar, expand)
    growth = grow(context.tokens[-1], budget, context.max_depth, context.vocab_size, legal)
    return DraftTree.deterministic(TokenTree(growth.tokens, growth.parents), growth.sources[1:], growth.scores[1:])
