"""The greedy rule: follow the target's best token for as long as the draft holds it."""

from __future__ import annotations

from .law import TreeLaw
from .proposal import DraftTree
from .rule import Coins, Law, Verdict
from .vectors import best_token


class Greedy:
    """Walks down along the most probable token; the lowest id wins a tie. Uses no coins. Exact at temperature 0.

    Of two siblings with that token the first in draw order is taken: both stand for the same prefix.
    """

    name = "greedy"
    lossless = True

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Walks the draft and returns the accepted path and the bonus token."""
        tree = draft.tree
        path = [0]
        # a tree's law tells it without making a vector of it
        best_of = law.best if isinstance(law, TreeLaw) else lambda node: best_token(law(node))
        while True:
            best = best_of(path[-1])
            child = tree.child_with(path[-1], best)
            if child is None:
                return Verdict(tuple(path), best)
            path.append(child)
