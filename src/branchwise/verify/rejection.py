"""Recursive rejection: accept a child with probability target over draft, else go on with what is left of the target.

Sources: Leviathan, Kalman and Matias 2023, section 2.3 (one child); SpecInfer, Miao et al. 2024, section 4.3 (several,
with replacement); recursive speculative decoding, Jeon et al. 2024, and Sequoia, Chen et al. 2024, section 3.2 (without
replacement).
"""

from __future__ import annotations

from .proposal import DraftTree
from .rounds import rounds
from .rule import Coins, Law, Verdict
from .vectors import lift


class Rejection:
    """Plays the rounds of every node from the root down. Exact for any tree that carries its proposals.

    Attributes:
        zero_residuals: how often rounding left a residual without mass, so that the bonus token was drawn from the
            unchanged law. In exact arithmetic such a rejection has probability 0.
    """

    name = "rejection"
    lossless = True

    def __init__(self) -> None:
        self.zero_residuals = 0

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Walks the draft and returns the accepted path and the bonus token.

        Raises:
            ValueError: a child's token has probability 0 under its own proposal. Names the node.
        """
        path = [0]
        while True:
            target = residual = lift(law(path[-1]))
            for game in rounds(draft, path[-1]):
                if coins.bernoulli(game.ratio(residual)):
                    path.append(game.child)
                    break
                residual, _ = game.residual(residual)
                if residual.is_zero:
                    self.zero_residuals += 1
                    return Verdict(tuple(path), coins.choice(target.weights))
            else:
                return Verdict(tuple(path), coins.choice(residual.weights))
