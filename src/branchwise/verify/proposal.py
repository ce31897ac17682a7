"""The draft tree: a token tree whose every node says how it was drawn.

A rule is exact only if it knows the law each child was drawn from, given its earlier siblings. Two ways exist: picked
without chance (a lookup, a top-k), or sampled from a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..tree import TokenGraph, TokenTree


@dataclass(frozen=True)
class OneHot:
    """The child was picked without chance: its law is one on its own token, zero elsewhere."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """The child was sampled.

    Attributes:
        vector: ``[V]`` probabilities at the parent that the *first* sampled child was drawn from: after temperature,
            truncation, vocabulary trimming and rounding, and without the tokens of deterministic siblings. All sampled
            children of one parent share this one object, so a tree holds one vector per parent.
        replacement: False when a later sibling was drawn from the vector without the tokens of earlier sampled siblings
            (renormalised); True when every sibling was drawn from the same vector.
    """

    vector: Tensor
    replacement: bool = False


Proposal = OneHot | Sampled
ONE_HOT = OneHot()


@dataclass(frozen=True, eq=False)
class DraftTree:
    """What a drafter hands to the loop.

    Attributes:
        tree: the token tree, at most ``budget`` nodes, root included.
        proposals: how each drafted node was drawn, ``len(tree) - 1`` of them: ``proposals[i - 1]`` belongs to node i.
        sources: name of the drafter that proposed each drafted node, in the same layout; empty when not told.
        scores: the drafter's own estimate that each drafted node will be accepted, same layout; empty when not told.
    """

    tree: TokenTree
    proposals: tuple[Proposal, ...]
    sources: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tree, TokenGraph):
            raise ValueError(
                "a draft must be a TokenTree, got a TokenGraph: a node with two histories has no single law, so no "
                "rule can judge it"
            )
        drafted = len(self.tree) - 1
        for name in ("proposals", "sources", "scores"):
            given = len(getattr(self, name))
            if given != drafted and (given or name == "proposals"):
                raise ValueError(f"a draft of {drafted} nodes below the root needs {drafted} {name}, got {given}")

    @classmethod
    def deterministic(
        cls, tree: TokenTree, source: str | Sequence[str] = (), scores: Sequence[float] = ()
    ) -> DraftTree:
        """A draft whose every child was picked without chance."""
        drafted = len(tree) - 1
        sources = (source,) * drafted if isinstance(source, str) else tuple(source)
        return cls(tree, (ONE_HOT,) * drafted, sources, tuple(scores))

    def _repr_html_(self) -> str:
        # drawing is floors above: imported when a notebook asks
        from ..show.display import tree_html

        return tree_html(self)

    def proposal(self, node: int) -> Proposal:
        """How ``node`` (>= 1) was drawn."""
        return self.proposals[node - 1]

    @property
    def is_deterministic(self) -> bool:
        """Whether no child was drawn by chance."""
        return all(isinstance(proposal, OneHot) for proposal in self.proposals)
