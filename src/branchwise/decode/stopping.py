"""When a lane ends: stop tokens, stop strings, lengths and user criteria, token by token inside an accepted run.

A step may emit several tokens; generation must end where plain decoding would have ended, so a run is cut at the first
token that stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import StoppingCriteriaList

from .text import TextStream


@dataclass(frozen=True)
class Stop:
    """Why a lane ended.

    Attributes:
        reason: ``"stop"`` (a token, a string or a criterion asked for it) or ``"length"`` (no room was left).
        cause: the same in detail: ``"stop_token"``, ``"stop_string"``, ``"criteria"``, ``"max_new_tokens"`` or
            ``"context_limit"``.
    """

    reason: str
    cause: str


@dataclass(frozen=True, eq=False)
class StopRules:
    """What ends one lane.

    Attributes:
        max_new_tokens: most tokens to generate.
        context_limit: most tokens prompt and output may have together, or None.
        stop_tokens: ids that end the text; the stopping token is part of the output.
        stop_strings: strings that end the text; the token that completes one is part of the output.
        criteria: transformers criteria, called after every token as in transformers.
    """

    max_new_tokens: int
    context_limit: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    criteria: StoppingCriteriaList = field(default_factory=StoppingCriteriaList)

    def room(self, prompt_tokens: int) -> tuple[int, str]:
        """Most tokens the lane may generate after its prompt, and which of the two limits says so."""
        if self.context_limit is not None and self.context_limit - prompt_tokens < self.max_new_tokens:
            return self.context_limit - prompt_tokens, "context_limit"
        return self.max_new_tokens, "max_new_tokens"


class StopWatch:
    """Applies `StopRules` to one lane as its tokens come.

    Args:
        rules: what ends the lane.
        prompt: its prompt as the criteria see it (padding included where transformers would include it).
        prompt_tokens: its length without padding.
        text: decodes the output, special tokens included; needed for stop strings only.
    """

    def __init__(self, rules: StopRules, prompt: Sequence[int], prompt_tokens: int, text: TextStream | None) -> None:
        if rules.stop_strings and text is None:
            raise ValueError(f"stop strings {list(rules.stop_strings)} need a tokenizer; pass tokenizer=...")
        self.rules = rules
        self.room, self._room_cause = rules.room(prompt_tokens)
        self._generated = 0
        self._prompt = tuple(prompt)
        self._tokens: list[int] = []
        self._scores: list[torch.Tensor] = []
        self._text = text
        self._longest_stop = max(map(len, rules.stop_strings), default=0)

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.room - self._generated

    def take(self, run: Sequence[int], scores: Sequence[torch.Tensor] = ()) -> tuple[tuple[int, ...], Stop | None]:
        """Counts the tokens of ``run`` up to the first that stops.

        Args:
            run: the tokens of one step, in order.
            scores: processed scores ``[V]`` behind each token where they are kept, else empty; for user criteria.

        Returns:
            the tokens that belong to the output, and why the lane ends with them, or None.
        """
        for index, token in enumerate(run):
            self._generated += 1
            if index < len(scores):
                self._scores.append(scores[index][None])
            stop = self._check(token)
            if stop is not None:
                return tuple(run[: index + 1]), stop
        return tuple(run), None

    def _check(self, token: int) -> Stop | None:
        asked = self._ask_criteria(token)  # first: transformers calls them after every token, the stopping one too
        if token in self.rules.stop_tokens:
            return Stop("stop", "stop_token")
        if self._completes_stop_string(token):
            return Stop("stop", "stop_string")
        if asked:
            return Stop("stop", "criteria")
        if self.left <= 0:
            return Stop("length", self._room_cause)
        return None

    def _completes_stop_string(self, token: int) -> bool:
        if not self.rules.stop_strings:
            return False
        assert self._text is not None
        before = len(self._text.text)
        self._text.push(token)
        tail = self._text.text_with_rest()[max(0, before - self._longest_stop) :]
        return any(stop in tail for stop in self.rules.stop_strings)

    def _ask_criteria(self, token: int) -> bool:
        """Calls the user's criteria as transformers does: all tokens so far, and all scores or None."""
        if not self.rules.criteria:
            return False
        self._tokens.append(token)
        ids = torch.tensor([[*self._prompt, *self._tokens]])
        return bool(torch.as_tensor(self.rules.criteria(ids, tuple(self._scores) or None)).any())
