"""Typical acceptance: keep what the target finds plausible. LOSSY: it changes the law, and is never chosen by ``auto``.

Source: Medusa, Cai et al. 2024, section 2.3.1. A node stands when the target gives its token more than
``min(epsilon, delta * exp(-entropy))``: a lower bar where the target itself is undecided. The longest path wins.
"""

from __future__ import annotations

import math

from .proposal import DraftTree
from .rule import Coins, Law, Verdict
from .vectors import lift


class Typical:
    """Keeps the longest path of plausible tokens, the first in node order among equals. Lossy.

    Args:
        epsilon: hard threshold on the target's probability.
        delta: threshold relative to the exponential of minus the entropy (in nats).
    """

    name = "typical"
    lossless = False

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not (0 < epsilon < 1 and delta > 0):
            raise ValueError(f"typical acceptance needs 0 < epsilon < 1 and delta > 0, got {epsilon} and {delta}")
        self.epsilon = epsilon
        self.delta = delta

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Returns the longest plausible path and a bonus token drawn from the target's law after it."""
        tree = draft.tree
        standing, best = [0], 0
        for node in standing:  # grows while it is walked: depth by depth below what stands
            if not tree.children(node):
                continue
            target = lift(law(node))
            bar = min(self.epsilon, self.delta * math.exp(-target.entropy()))
            for child in tree.children(node):
                if target.at(tree.tokens[child]) > bar:
                    standing.append(child)
                    if tree.depth[child] > tree.depth[best]:
                        best = child
        return Verdict(tree.path(best), coins.choice(law(best)))
