"""The protocol every verification rule follows, and the verdict it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .proposal import DraftTree

#: node number -> probability vector ``[V]`` of the token after that node's own prefix; evaluated when called, so a rule
#: pays only for the nodes it visits. A rule must not change the vector.
Law = Callable[[int], Tensor]


class Coins(Protocol):
    """The randomness of one step. Implementations are seeded, or enumerate every outcome with its weight."""

    def bernoulli(self, p: float) -> bool:
        """True with probability ``p``: u < p with u uniform on [0, 1), so never at p == 0, always at p >= 1."""
        ...

    def choice(self, vector: Tensor) -> int:
        """A token drawn from the probability vector ``[V]``; never one of probability 0."""
        ...


@dataclass(frozen=True)
class Verdict:
    """What a rule decided about one draft.

    Attributes:
        path: node numbers of the accepted path, root first: these rows of keys and values are committed.
            ``len(path) - 1`` drafted nodes were accepted and ``len(path)`` tokens are emitted by the step.
        bonus: the token drawn from the target after the path; the next root.
    """

    path: tuple[int, ...]
    bonus: int


class Rule(Protocol):
    """Decides which path of a draft the target itself would have written."""

    name: str

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Walks the draft and returns the accepted path and the bonus token.

        Raises:
            ValueError: the draft is of a kind this rule is not exact for; names both.
        """
        ...
