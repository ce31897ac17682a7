"""Rounds: the children of one node in draw order, each with the law its token was drawn from.

A rejection rule plays one round per child. The law of a round, given the earlier siblings, is one-hot for a child
picked without chance, the shared vector for one drawn with replacement, and the vector without the tokens of earlier
sampled siblings, renormalised, for one drawn without. With this one derivation every rule is exact on lookup, top-k,
sampled and mixed nodes alike.

Order matters: the residual of a round uses the law of *that* round, and the law is thinned afterwards; rounds follow
draw order, never probability.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .proposal import DraftTree, Sampled
from .vectors import Number, Vector, lift


@dataclass(frozen=True, eq=False)
class Round:
    """One child up for acceptance.

    Attributes:
        child: its node number.
        token: its token.
        drawn_from: the law its token was drawn from, or None for one-hot.
    """

    child: int
    token: int
    drawn_from: Vector | None

    def ratio(self, target: Vector) -> Number:
        """Target over draft at the token: the acceptance probability when capped at one. 0 where the target is 0."""
        wanted = target.at(self.token)
        if self.drawn_from is None:
            return wanted
        drawn = self.drawn_from.at(self.token)
        return wanted / drawn if drawn > 0 else drawn  # the chance of a draw can underflow; then it may as well be lost

    def residual(self, target: Vector, scale: Number = 1) -> tuple[Vector, Number]:
        """What is left of ``scale * target`` after this round was lost, normalised, and its mass."""
        if self.drawn_from is not None:
            return target.excess(self.drawn_from, scale)
        rest, share = target.without(self.token)
        return rest, scale * share


def rounds(draft: DraftTree, node: int) -> Iterator[Round]:
    """The rounds of ``node``, each made when it is asked for.

    Raises:
        ValueError: a child carries a token that its proposal gives probability 0, or sampled siblings do not share one
            vector. Names the node.
    """
    shared: Sampled | None = None
    vector: Vector | None = None
    drawn: int | None = None  # a sampled token not yet taken out of ``vector``
    for child in draft.tree.children(node):
        token = draft.tree.tokens[child]
        proposal = draft.proposal(child)
        if not isinstance(proposal, Sampled):
            yield Round(child, token, None)
            continue
        if shared is None or vector is None:
            shared, vector = proposal, lift(proposal.vector)
        elif proposal.vector is not shared.vector or proposal.replacement != shared.replacement:
            raise ValueError(
                f"node {child} and an earlier sibling below node {node} were sampled from different proposals; sampled "
                "siblings must share one vector and one kind of replacement"
            )
        if drawn is not None and not shared.replacement:
            vector, _ = vector.without(drawn)
        if vector.is_zero or not vector.at(token) > 0:
            raise ValueError(
                f"node {child} carries token {token}, which its proposal gives probability 0 (given its earlier "
                "siblings): the vector in the draft is not the one the token was drawn from"
            )
        yield Round(child, token, vector)
        drawn = token
