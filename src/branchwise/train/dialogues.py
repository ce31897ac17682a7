"""The target writes dialogues, many at once: a lane that is done makes room for the next between two steps.

Runs the ordinary loop (`decode.session`) with the law of a dialogue. Knows no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from transformers import StoppingCriteriaList

from ..decode.request import Request
from ..decode.session import Lane, Session
from ..decode.stopping import StopRules
from ..draft.protocol import Drafter
from ..target.protocol import Target
from ..tune.budget import FixedBudget
from ..verify.law import Sampler
from ..verify.match import Match
from .chat_frame import ChatFrame
from .dialogue_law import DialogueEnd, DialogueLaw, DialoguePlan
from .loops import loop_start
from .shards import ANSWER, CONTEXT, USER, TokenSequence


@dataclass(frozen=True, eq=False)
class Dialogue:
    """A finished dialogue.

    Attributes:
        plan: what was to be written.
        sequence: what was written, loops cut off after their first round.
        answer: the answer's token ids, the stopping token included.
        ended: whether the answer ended by itself.
    """

    plan: DialoguePlan
    sequence: TokenSequence
    answer: tuple[int, ...]
    ended: bool


class Author:
    """A target at its desk.

    Args:
        target: writes.
        frame: of its chats.
        drafter: speeds single lanes up; with many lanes the forward is busy already, and ``none`` is fastest.
        budget: nodes of a draft tree, root included.
        lanes: dialogues at once.
        seed: of all sampling.
    """

    def __init__(
        self, target: Target, frame: ChatFrame, drafter: Drafter, *, budget: int, lanes: int, seed: int
    ) -> None:
        if lanes < 1:
            raise ValueError(f"lanes must be >= 1, got {lanes}")
        self._session = Session(target, drafter, FixedBudget(budget))
        self._frame = frame
        self._lanes = lanes
        self._seed = seed
        self._laws: dict[Lane, DialogueLaw] = {}

    def write(self, plans: Iterator[DialoguePlan]) -> Iterator[Dialogue | None]:
        """Writes all planned dialogues; yields each when it is finished, and None after a step that finished none."""
        try:
            while True:
                while len(self._session.active) < self._lanes and (plan := next(plans, None)) is not None:
                    self._begin(plan)
                if not self._session.active:
                    return
                finished = [lane for lane in self._session.step() if lane.stop is not None]
                if not finished:
                    yield None
                for lane in finished:
                    yield self._finished(lane)
        finally:
            self._session.close()

    def _begin(self, plan: DialoguePlan) -> None:
        law = DialogueLaw(self._frame, plan)
        stop = StopRules(
            plan.room(self._frame),
            self._session.target.context_limit,
            criteria=StoppingCriteriaList([DialogueEnd(law)]),
        )
        request = Request(plan.prompt, Sampler(True, [law]), stop, seed=self._seed, return_index=plan.number)
        self._laws[self._session.add(request, Match())] = law

    def _finished(self, lane: Lane) -> Dialogue:
        law = self._laws.pop(lane)
        plan, written = law.plan, lane.generated
        start = law.answer_start(written)
        if start is None:  # the context ended inside the question
            start = len(written)
        answer = written[start:]
        ended = bool(answer) and answer[-1] in law.frame.stops
        answer = answer[: loop_start(answer)]
        return Dialogue(plan, _sequence(law, written, start, answer), tuple(answer), ended)


def _sequence(law: DialogueLaw, written: list[int], start: int, answer: list[int]) -> TokenSequence:
    plan, frame = law.plan, law.frame
    end = law.question_end(written) or 0
    said = len(plan.prompt) - plan.context_tokens
    roles = [CONTEXT] * plan.context_tokens + [USER] * said
    if not plan.question_tokens and frame.after:  # the prompt ends with the template
        roles[-len(frame.after) :] = [CONTEXT] * len(frame.after)
    roles += [USER] * end + [CONTEXT] * (start - end) + [ANSWER] * len(answer)
    tokens = [*plan.prompt, *written[:start], *answer]
    return TokenSequence(plan.number, plan.kind, np.array(tokens, np.int32), np.array(roles, np.uint8))
