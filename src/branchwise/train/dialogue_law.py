"""The law of a whole dialogue as one logits processor: the question, the template in between, the answer.

So one lane of the ordinary loop writes a dialogue, with any drafter, and nothing has to be prefilled twice. Knows a
`ChatFrame` and the tokens so far. Everything is a function of the prefix, as a law on a tree must be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..draft.top_tokens import top_tokens
from .chat_frame import ChatFrame
from .loops import loop_start

#: a question shorter than this is none
LEAST_QUESTION_TOKENS = 3
#: a question that went past its length is cut at the next end of a sentence, at the latest after this many times it
PATIENCE = 1.5
#: candidates that top-p chooses from: more than that many tokens hold .95 of the law only where anything may follow
CANDIDATES = 64
TOP_P = 0.95
#: an answer is looked at for loops each time it has grown by so many tokens
LOOP_CHECK_TOKENS = 16


@dataclass(frozen=True, eq=False)
class DialoguePlan:
    """One dialogue to write.

    Attributes:
        number: its place in the data, from 0.
        kind: of its opener.
        prompt: template and opener as token ids.
        context_tokens: how many of them the user did not say.
        question_tokens: about how many tokens the target adds to the question; 0: the prompt ends with the template.
        answer_tokens: most tokens of the answer.
        temperature: of the answer; 0 is greedy.
    """

    number: int
    kind: str
    prompt: tuple[int, ...]
    context_tokens: int
    question_tokens: int
    answer_tokens: int
    temperature: float

    @property
    def hard_limit(self) -> int:
        """Most tokens the target may add to the question."""
        return math.ceil(PATIENCE * self.question_tokens)

    def crossing(self, frame: ChatFrame) -> int:
        """Tokens between question and answer that the lane must write."""
        return len(frame.after) if self.question_tokens else 0

    def room(self, frame: ChatFrame) -> int:
        """Most tokens the lane may write in all."""
        return self.hard_limit + self.crossing(frame) + self.answer_tokens


class DialogueLaw:
    """Scores to scores, called as transformers calls its processors.

    Args:
        frame: of the chat.
        plan: of this dialogue.
    """

    def __init__(self, frame: ChatFrame, plan: DialoguePlan) -> None:
        self.frame = frame
        self.plan = plan
        self._silent = torch.tensor(sorted(frame.silent - frame.after_mark), dtype=torch.long)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The law at the end of ``input_ids``; shapes ``[1, L]`` and ``[1, V]``."""
        written = input_ids[0, len(self.plan.prompt) :].tolist()
        end = self.question_end(written)
        if end is None:
            return self._question(written, scores)
        crossed = len(written) - end
        if crossed < self.plan.crossing(self.frame):
            return only(scores, torch.tensor([[self.frame.after[crossed]]]))
        if self.plan.temperature == 0:
            return only(scores, scores.argmax(dim=-1, keepdim=True))
        return scores / self.plan.temperature

    def question_end(self, written: Sequence[int]) -> int | None:
        """How many of the written tokens belong to the question, or None while it goes on."""
        plan, frame = self.plan, self.frame
        if not plan.question_tokens or not frame.after:
            return 0
        ends = []
        mark = frame.after[:1] if frame.ends_by_token else frame.after
        natural = _find(written, mark)
        if natural is not None:
            ends.append(natural)
        for length in range(plan.question_tokens, min(len(written), plan.hard_limit) + 1):
            if length == plan.hard_limit or (length and written[length - 1] in frame.sentence_ends):
                ends.append(length)
                break
        return min(ends, default=None)

    def answer_start(self, written: Sequence[int]) -> int | None:
        """How many written tokens come before the answer, or None when it has not begun."""
        end = self.question_end(written)
        crossing = self.plan.crossing(self.frame)
        return None if end is None or len(written) < end + crossing else end + crossing

    def _question(self, written: Sequence[int], scores: Tensor) -> Tensor:
        scores = scores.index_fill(1, self._silent.to(scores.device), -math.inf)
        if len(written) < LEAST_QUESTION_TOKENS:
            scores[:, list(self.frame.after[:1])] = -math.inf
        values, tokens = top_tokens(scores, min(CANDIDATES, scores.shape[1]))  # [1, K]
        held = values.softmax(dim=-1).cumsum(dim=-1)
        kept = tokens[:, : int(torch.searchsorted(held[0], TOP_P)) + 1]
        return only(scores, kept)


class DialogueEnd:
    """Says when a dialogue is over, called as transformers calls its stopping criteria.

    The answer ends with a stop token, at its greatest length, or when it runs in circles.
    """

    def __init__(self, law: DialogueLaw) -> None:
        self._law = law

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        """True once the last token ends the dialogue; ``input_ids`` is ``[1, L]``."""
        written = input_ids[0, len(self._law.plan.prompt) :].tolist()
        return torch.tensor([self.is_over(written)])

    def is_over(self, written: Sequence[int]) -> bool:
        """Whether the tokens written so far end the dialogue."""
        start = self._law.answer_start(written)
        if start is None or start == len(written):
            return False
        answer = written[start:]
        if answer[-1] in self._law.frame.stops or len(answer) >= self._law.plan.answer_tokens:
            return True
        return len(answer) % LOOP_CHECK_TOKENS == 0 and loop_start(answer) is not None


def only(scores: Tensor, kept: Tensor) -> Tensor:
    """``scores`` ``[1, V]`` at the ids ``kept`` ``[1, K]``, minus infinity elsewhere."""
    result = torch.full_like(scores, -math.inf)
    kept = kept.to(scores.device)
    return result.scatter(1, kept, scores.gather(1, kept))


def _find(tokens: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Where ``wanted`` first stands in ``tokens``."""
    for place in range(len(tokens) - len(wanted) + 1):
        if tokens[place] == wanted[0] and list(tokens[place : place + len(wanted)]) == list(wanted):
            return place
    return None
