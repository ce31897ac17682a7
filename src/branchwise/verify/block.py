"""Block verification: the longest prefix of one drafted chain that can stand, judged jointly.

Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444), algorithm 2.
It accepts at least as many tokens as judging one token at a time, in expectation.
"""

from __future__ import annotations

from collections.abc import Sequence

from .proposal import DraftTree
from .rounds import Round, rounds
from .rule import Coins, Law, Verdict
from .vectors import Number, Vector, lift


class Block:
    """Judges chains. Exact for any chain that carries its proposals; refuses trees.

    Attributes:
        zero_residuals: how often rounding left the root's residual without mass, so that the bonus token was drawn from
            the unchanged law. In exact arithmetic this has probability 0.
    """

    name = "block"
    lossless = True

    def __init__(self) -> None:
        self.zero_residuals = 0

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Judges the chain and returns the accepted prefix and the bonus token.

        Raises:
            ValueError: a node has two children, or its token has probability 0 under its own proposal. Names the node.
        """
        for node in range(len(draft.tree)):
            if len(draft.tree.children(node)) > 1:
                raise ValueError(
                    f"rule 'block' judges chains, but node {node} of the draft has {len(draft.tree.children(node))} "
                    "children; use rule 'traversal', which equals it on chains"
                )
        games = [game for node in range(len(draft.tree)) for game in rounds(draft, node)]
        nodes = [0, *(game.child for game in games)]
        kept, bonus, was_zero = judge_chain(nodes, games, law, coins)
        self.zero_residuals += was_zero
        return Verdict(tuple(nodes[: kept + 1]), bonus)


def judge_chain(nodes: Sequence[int], games: Sequence[Round], law: Law, coins: Coins) -> tuple[int, int, bool]:
    """Block verification of one chain.

    Every prefix length i has its own coin of probability h_i and the longest success counts. They are thrown from the
    longest down, so throwing stops at the first success. Since h_i <= reach_i, a coin of probability reach_i is thrown
    first and only its successes pay for the residual, with a second coin of probability h_i / reach_i.

    Args:
        nodes: L + 1 node numbers, the root first.
        games: L rounds; ``games[i]`` says how the token of ``nodes[i + 1]`` was drawn.
        law: the law at each node.
        coins: the coins.

    Returns:
        How many drafted nodes stand, the bonus token, and whether the root's residual was zero.
    """
    targets: list[Vector] = []
    reach: list[Number] = [1]
    for node, game in zip(nodes, games, strict=False):
        if not reach[-1] > 0:
            break
        targets.append(lift(law(node)))
        reach.append(min(1, reach[-1] * game.ratio(targets[-1])))
    for kept in range(len(reach) - 1, 0, -1):
        if not coins.bernoulli(reach[kept]):
            continue
        if kept == len(games):
            return kept, coins.choice(law(nodes[kept])), False
        residual, left = games[kept].residual(targets[kept], reach[kept])
        if not residual.is_zero and coins.bernoulli(left / (left + (1 - reach[kept])) / reach[kept]):
            return kept, coins.choice(residual.weights), False
    if not games:
        return 0, coins.choice(law(nodes[0])), False
    residual, _ = games[0].residual(targets[0])
    return 0, coins.choice((targets[0] if residual.is_zero else residual).weights), residual.is_zero
