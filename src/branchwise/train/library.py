"""What has been written so far: texts for questions about a text, and which answers would be repetitions."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from .shards import ANSWER, USER, TokenSequence

#: answers of so many tokens serve as passages
PASSAGE_TOKENS = range(48, 200)
#: the latest so many of them
SHELF = 4000
#: two answers that begin with the same so many tokens are one; shorter ones also need the same question
SAME_TOKENS = 40
#: shorter answers teach nothing
LEAST_ANSWER_TOKENS = 2


class Library:
    """Grows as dialogues are finished.

    Args:
        tokenizer: turns answers back into text.
        stops: tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, stops: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._passages: deque[str] = deque(maxlen=SHELF)
        self._seen: set[bytes] = set()

    def take(self, sequence: TokenSequence) -> bool:
        """Takes a dialogue in; False when it is not worth keeping: too short, or there is one like it."""
        answer = sequence.tokens[sequence.roles == ANSWER].tolist()
        if len(answer) < LEAST_ANSWER_TOKENS:
            return False
        key = answer[:SAME_TOKENS]
        if len(answer) < SAME_TOKENS:
            key = [*key, -1, *sequence.tokens[sequence.roles == USER].tolist()]
        digest = hashlib.sha256(str(key).encode()).digest()[:12]
        if digest in self._seen:
            return False
        self._seen.add(digest)
        if len(answer) in PASSAGE_TOKENS and answer[-1] in self._stops:
            self._passages.append(self._tokenizer.decode(answer, skip_special_tokens=True).strip())
        return True

    def passages(self, chance: Random, count: int) -> Sequence[str]:
        """Texts drawn from earlier answers, all different; fewer while there are few."""
        return chance.sample(self._passages, min(count, len(self._passages)))
