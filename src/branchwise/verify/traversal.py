"""Traversal verification: judge whole paths from the leaves up, so a good path is not lost to one bad early token.

Source: Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding" (arXiv 2505.12398).
On a chain it equals block verification; with one-hot proposals it has the law of `match`.
"""

from __future__ import annotations

from collections.abc import Iterator

from .proposal import DraftTree
from .rounds import Round, rounds
from .rule import Coins, Law, Verdict
from .vectors import Number, Vector, lift


class Branch:
    """A node on the current path: what is left of its law, and which of its children are still to be judged.

    Attributes:
        node: its number.
        reach: probability that the path down to here stands, if it is judged as a leaf now; 1 at the root.
        residual: what is left of the target's law after the children judged so far; evaluated on demand, since most
            leaves are judged without it.
        current: the first child not yet judged, or None: then the node is itself a leaf.
    """

    def __init__(self, node: int, reach: Number, draft: DraftTree, law: Law) -> None:
        self.node = node
        self.reach = reach
        self._law = law
        self._residual: Vector | None = None
        self._rounds: Iterator[Round] = rounds(draft, node)
        self.current = next(self._rounds, None)

    @property
    def residual(self) -> Vector:
        if self._residual is None:
            self._residual = lift(self._law(self.node))
        return self._residual

    def lose_child(self) -> None:
        """Takes the current child's share off the law and moves on to the next child."""
        assert self.current is not None
        self._residual, left = self.current.residual(self.residual, self.reach)
        if self.node != 0:
            # 1 - reach is the chance that this path has failed already; 0 / 0 is 0
            self.reach = 0 if self._residual.is_zero else left / (left + (1 - self.reach))
        self.current = next(self._rounds, None)


class Traversal:
    """Judges leaves in depth-first draw order. Exact for any tree that carries its proposals.

    Attributes:
        zero_residuals: how often rounding left the root's residual without mass, so that the bonus token was drawn from
            the unchanged law. In exact arithmetic this has probability 0.
    """

    name = "traversal"
    lossless = True
    branch = Branch

    def __init__(self) -> None:
        self.zero_residuals = 0

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Judges the draft and returns the accepted path and the bonus token.

        Raises:
            ValueError: a child's token has probability 0 under its own proposal. Names the node.
        """
        path = [self.branch(0, 1, draft, law)]
        while True:
            branch = path[-1]
            if branch.current is not None and branch.reach > 0 and not branch.residual.is_zero:
                reach = branch.reach * branch.current.ratio(branch.residual)
                path.append(self.branch(branch.current.child, min(1, reach), draft, law))
            elif branch.node == 0:
                residual = branch.residual
                if residual.is_zero:
                    self.zero_residuals += 1
                    residual = lift(law(0))
                return Verdict((0,), coins.choice(residual.weights))
            elif coins.bernoulli(branch.reach):
                nodes = tuple(step.node for step in path)
                return Verdict(nodes, coins.choice(branch.residual.weights))
            else:
                path.pop()
                path[-1].lose_child()
