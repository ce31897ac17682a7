"""What a candidate source is: something that says, path by path, which tokens may come next and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from .best_first import Path
from .protocol import DraftContext, StepRecord

#: what one lane's source needs to remember between steps; only the source that made it looks inside
SourceState = Any


class Evidence(NamedTuple):
    """One opinion on the next token: if this evidence decides, token t comes with probability weights[t] / total.

    Attributes:
        kind: how strong such evidence is, as an index into the source's `trust`. How often each kind decides is
            learned by the mixer, so a source need not know what its own word is worth, only which of its words are
            alike.
        weights: positive weight of every token it names, falling (the mixer stops reading at the first one too small to
            matter); must not be changed.
        total: what the weights sum to; more when some mass belongs to tokens that are not named.
    """

    kind: int
    weights: Mapping[int, float]
    total: float = 1.0


class CandidateSource(Protocol):
    """Guesses the next token after any path below the root. One object serves many lanes.

    Within one step the order of calls for a lane is `begin`, then `evidence` for paths of the mixer's choice, then,
    when the step is verified, `evidence` along the accepted path where it was not asked yet (to learn what it was
    worth), then `absorb`.

    Some members are optional: ``finish(state)`` when a lane ends; ``costs_forwards = True`` for a source that runs a
    model in `begin`, and then ``skip(states, contexts)``, called in its place when the step can do without;
    ``samples = True`` and ``complete`` for a source that draws, see `DrafterSource`; ``native_table(state)`` for one
    whose evidence comes from a table of C (None while it does not), which the mixer then reads itself, and with it
    ``knows_more(state)`` and ``more_evidence(state, path)`` for what comes after the table's in some steps.
    """

    name: str
    #: hidden states wanted from the target, as numbered in `TargetOutput.features`
    feature_layers: tuple[int, ...]
    #: for every kind of evidence, the probability that it decides the next token, before anything is learned
    trust: tuple[float, ...]

    def start(self, context: DraftContext) -> SourceState:
        """State for one new lane whose prompt is in ``context.tokens``."""
        ...

    def begin(self, states: Sequence[SourceState], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """A step begins: takes in the tokens committed since the last one.

        All lanes come at once, so that a source that runs a model can run it here, once for all.
        """
        ...

    def evidence(self, state: SourceState, path: Path) -> Sequence[Evidence]:
        """Opinions on the token after ``path``; empty when the source has nothing to say."""
        ...

    def absorb(self, states: Sequence[SourceState], records: Sequence[StepRecord]) -> None:
        """Learns from whole steps: logits and features of every verified node, rejected ones too.

        The records' trees may hold nodes that other sources proposed.
        """
        ...
