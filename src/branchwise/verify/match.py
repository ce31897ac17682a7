"""Target-sample match: draw from the target, and see whether the draft guessed it.

Exact for every way of building a tree, because a draft only decides how many of the target's own draws one forward can
serve; it never touches the draws. The rule ignores how children were proposed, so it needs no draft probabilities.
SpecInfer (Miao et al. 2024, section 4.3) calls it naive sampling.
"""

from __future__ import annotations

from .proposal import DraftTree
from .rule import Coins, Law, Verdict
from .siblings import require_distinct_siblings


class Match:
    """Draws one token per node visited and descends while a child carries it.

    It calls ``coins.choice`` exactly once per emitted token, in order. With coins keyed by absolute position the output
    is therefore plain sampling's, token for token, whatever was drafted.
    """

    name = "match"
    lossless = True

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Walks the draft and returns the accepted path and the bonus token.

        Raises:
            ValueError: two siblings share a token: the token alone must say which child is meant. Names them.
        """
        require_distinct_siblings(draft.tree, self.name)
        tree = draft.tree
        path = [0]
        while True:
            token = coins.choice(law(path[-1]))
            child = tree.child_with(path[-1], token)
            if child is None:
                return Verdict(tuple(path), token)
            path.append(child)
