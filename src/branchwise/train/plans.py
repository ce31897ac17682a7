"""Which dialogues are to be written: planned one by one, each by its number alone.

Knows openers or a user's prompts, a frame and the settings; knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from .chat_frame import ChatFrame
from .dialogue_law import DialoguePlan
from .openers import RECIPE, OpenerBook


@dataclass(frozen=True)
class WritingSettings:
    """Everything that decides what is written, the target apart.

    Attributes:
        seed: of openers and of all sampling.
        greedy_share: share of the answers that take the best token each time; the others are sampled.
        temperature: of sampled answers.
        answer_tokens: most tokens of an answer.
        longest: most tokens of a whole dialogue; longer passages are left out.
        dialogues_per_shard: dialogues are written in shards of so many.
        prompts: checksum of the user's own prompts, or empty where the target writes the questions.
        recipe: of the openers.
    """

    seed: int = 0
    greedy_share: float = 0.6
    temperature: float = 0.7
    answer_tokens: int = 320
    longest: int = 1536
    dialogues_per_shard: int = 32
    prompts: str = ""
    recipe: int = RECIPE

    def __post_init__(self) -> None:
        if not 0 <= self.greedy_share <= 1:
            raise ValueError(f"greedy-share must lie in [0, 1], got {self.greedy_share}")
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be > 0 (greedy-share 1 makes all answers greedy), got {self.temperature}"
            )
        for name in ("answer_tokens", "dialogues_per_shard"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '-')} must be >= 1, got {getattr(self, name)}")
        if self.longest < self.answer_tokens + 32:
            raise ValueError(f"longest must leave room for a question: at least {self.answer_tokens + 32}")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Planner:
    """Plans dialogues.

    Args:
        tokenizer: of the target.
        frame: its chat.
        settings: see there.
        openers: where questions begin, or
        prompts: whole questions to answer, each once.
    """

    def __init__(
        self,
        tokenizer: Any,
        frame: ChatFrame,
        settings: WritingSettings,
        *,
        openers: OpenerBook | None = None,
        prompts: Sequence[str] = (),
    ) -> None:
        if (openers is None) == (not prompts):
            raise ValueError("give openers or prompts, one of the two")
        self._tokenizer = tokenizer
        self._frame = frame
        self._settings = settings
        self._openers = openers
        self._prompts = prompts

    @property
    def count(self) -> int | None:
        """Dialogues there are to write, or None when there is no end."""
        return len(self._prompts) or None

    def plan(self, number: int) -> DialoguePlan | None:
        """The dialogue of this number, or None when its prompt leaves no room for an answer."""
        settings = self._settings
        chance = Random(f"answer {settings.seed} {number}")
        temperature = 0.0 if chance.random() < settings.greedy_share else settings.temperature
        if self._openers is not None:
            opener = self._openers.opener(number)
            kind, words, closed, most = opener.kind, opener.text, opener.is_complete, opener.most_tokens
        else:
            kind, words, closed, most = "prompt", self._prompts[number], True, 0
        closed = closed or not self._frame.after
        ids, context = self._frame.prompt(self._tokenizer, words, closed=closed)
        plan = DialoguePlan(
            number, kind, tuple(ids), context, 0 if closed else most, settings.answer_tokens, temperature
        )
        return plan if ids and len(ids) + plan.room(self._frame) <= settings.longest else None


def read_prompts_file(path: Path) -> list[str]:
    """Prompts, one a line: as they stand; in a .jsonl file the ``prompt`` or the first of the ``turns`` of an object.

    Raises:
        ValueError: a line is no such object, or the file holds no prompt; names the line.
    """
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            prompts.append(line)
            continue
        try:
            row = json.loads(line)
            prompt = row["prompt"] if "prompt" in row else row["turns"][0]
        except (ValueError, KeyError, IndexError, TypeError):
            prompt = None
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f'{path.name} line {number} holds no {{"prompt": "..."}} and no {{"turns": ["..."]}}')
        prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{path.name} holds no prompts")
    return prompts
