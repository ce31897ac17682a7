"""What a candidate source is: something that says, path by path, which token may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .best_first import Path
from .protocol import DraftContext, StepRecord

#: what one lane's source needs to remember between steps; only the source that made it looks inside
SourceState = Any
#: a token and the source's own estimate, given that its parent is accepted, that the target produces it
Claim = tuple[int, float]


class CandidateSource(Protocol):
    """Guesses the next token after any path below the root. One object serves many lanes.

    Within one step the order of calls for a lane is `begin`, then `expand` for paths of its choice, then, when the
    step is verified, `learn` for every node of the accepted path, then `absorb`.
    """

    name: str
    #: hidden states wanted from the target, as numbered in `TargetOutput.features`
    feature_layers: tuple[int, ...]

    def start(self, context: DraftContext) -> SourceState:
        """State for one new lane whose prompt is in ``context.tokens``."""
        ...

    def begin(self, states: Sequence[SourceState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """A step begins: takes in the tokens committed since the last one.

        All lanes come at once, so that a source that runs a model can run it here, once for all.
        """
        ...

    def expand(self, state: SourceState, path: Path) -> Sequence[Claim]:
        """Tokens that may follow ``path``, distinct, in any order; empty when the source has nothing to say."""
        ...

    def learn(self, state: SourceState, path: Path, token: int) -> None:
        """The target produced ``token`` after ``path``, whether or not anybody proposed it."""
        ...

    def absorb(self, states: Sequence[SourceState], records: Sequence[StepRecord]) -> None:
        """Learns from whole steps: logits and features of every verified node, rejected ones too.

        The records' trees may hold nodes that other sources proposed.
        """
        ...
