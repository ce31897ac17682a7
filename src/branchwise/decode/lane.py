"""One request on its way through the loop, and its way through one step.

Records only: who moves them is the session's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..draft.protocol import DraftContext, DraftState, StepRecord
from ..target.protocol import TargetOutput
from ..verify.coins import SeededCoins
from ..verify.law import LawMaker, TreeLaw
from ..verify.proposal import DraftTree
from ..verify.rule import Rule, Verdict
from .logprobs import TokenLogprobs
from .request import Request
from .statistics import StepSeconds
from .stopping import Stop, StopWatch


@dataclass(eq=False)
class Lane:
    """One request on its way through the loop.

    It is made before it has a place in the target, and may lose that place and get another one.
    """

    request: Request
    rule: Rule
    laws: LawMaker
    coins: SeededCoins
    context: DraftContext
    watch: StopWatch
    place: int | None = None  # the target's lane, while it has one
    read: int = 0  # committed tokens whose keys and values are in the target
    has_stepped: bool = False  # since it has this place, a step went well: what was read is sound
    draft_state: DraftState = None
    is_drafting: bool = False  # a drafter holds a state for it
    draft_error: Exception | None = None  # why it is no longer drafting
    features: dict[int, list[Tensor]] = field(default_factory=dict)  # of the tokens read so far, part by part
    prefill_seconds: float = 0.0
    generated: list[int] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    seconds: list[StepSeconds] = field(default_factory=list)
    raw_logits: list[Tensor] = field(default_factory=list)  # [V] per emitted token, if asked for
    scores: list[Tensor] = field(default_factory=list)  # [V] per emitted token, if asked for
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # per emitted token, if asked for
    stop: Stop | None = None
    error: Exception | None = None  # what ended it instead, where errors are kept apart

    def __post_init__(self) -> None:
        padding = self.request.padding
        #: the committed tokens as processors see them: one list with the context's unless there is padding
        self.row = [*padding, *self.context.tokens] if padding else self.context.tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes emitted tokens in."""
        self.generated.extend(tokens)
        self.context.tokens.extend(tokens)
        if self.row is not self.context.tokens:
            self.row.extend(tokens)

    @property
    def number(self) -> int:
        """The target's lane."""
        assert self.place is not None, "the lane has no place in the target"
        return self.place

    @property
    def position(self) -> int:
        """Committed tokens, the root included, without padding: the position of the next token."""
        return len(self.context.tokens)

    @property
    def unread(self) -> int:
        """Tokens still to be read before it can take part in a step."""
        return len(self.context.tokens) - 1 - self.read


@dataclass(frozen=True, eq=False)
class Decision:
    """What one lane's step came to before stopping: the verdict and the law behind it."""

    verdict: Verdict
    law: TreeLaw

    def tokens(self, draft: DraftTree) -> tuple[int, ...]:
        """The run: accepted tokens, then the bonus token."""
        return (*(draft.tree.tokens[node] for node in self.verdict.path[1:]), self.verdict.bonus)


@dataclass(eq=False)
class Turn:
    """One lane's way through one step."""

    lane: Lane
    draft: DraftTree
    scored: TargetOutput | None = None  # after the forward
    decided: Decision | None = None  # after the rule
    recorded: StepRecord | None = None  # after stopping

    def __post_init__(self) -> None:
        #: the target's lane; the lane itself may have left before the step is over
        self.number = self.lane.number

    @property
    def output(self) -> TargetOutput:
        """The target's."""
        assert self.scored is not None, "the turn has not come to the forward"
        return self.scored

    @property
    def decision(self) -> Decision:
        """The rule's."""
        assert self.decided is not None, "the turn has not come to the rule"
        return self.decided

    @property
    def record(self) -> StepRecord:
        """What the step came to."""
        assert self.recorded is not None, "the turn has not come to its end"
        return self.recorded
