"""Prompts: read from a file of questions, and turned into token ids.

Knows the lines of a prompt file and a tokenizer's chat template; knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One question; only its first turn is asked.

    Attributes:
        question_id: as the file names it, unique in the file.
        category: what results are grouped by.
        topic: a finer group inside the category.
        text: the first turn.
    """

    question_id: str
    category: str
    topic: str
    text: str


def read_prompts(path: str | Path) -> list[Prompt]:
    """Reads one JSON object per line: ``{"question_id", "category", "topic", "turns": [first, ...]}``.

    ``topic`` may be absent and is then the category.

    Raises:
        ValueError: a line is no such object, or two share an id; names the line.
        OSError: the file cannot be read.
    """
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    name = Path(path).name
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            category = str(row["category"])
            prompt = Prompt(str(row["question_id"]), category, str(row.get("topic", category)), row["turns"][0])
        except (json.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{name} line {number} is not a question ({type(error).__name__}: {error}); a line holds "
                '{"question_id": ..., "category": ..., "topic": ..., "turns": ["..."]}'
            ) from None
        if not isinstance(prompt.text, str) or not prompt.text:
            raise ValueError(f"{name} line {number}: the first turn must be a string that is not empty")
        if prompt.question_id in seen:
            first = seen[prompt.question_id]
            raise ValueError(f"{name} line {number} repeats question_id {prompt.question_id} of line {first}")
        seen[prompt.question_id] = number
        prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{name} holds no prompts")
    return prompts


def choose_prompts(
    prompts: Sequence[Prompt],
    *,
    categories: Sequence[str] = (),
    topics: Sequence[str] = (),
    limit_per_category: int | None = None,
) -> list[Prompt]:
    """The prompts to run, in the order of the file.

    Args:
        prompts: all of them.
        categories: keep these only; all when empty.
        topics: keep these only; all when empty.
        limit_per_category: most prompts of one category. Its topics take turns, each in the order of the file, so that
            a small number still covers all topics.

    Raises:
        ValueError: a category or topic does not occur (the message lists those that do), or nothing is left.
    """
    _check_known("category", categories, [prompt.category for prompt in prompts])
    _check_known("topic", topics, [prompt.topic for prompt in prompts])
    if limit_per_category is not None and limit_per_category < 1:
        raise ValueError(f"limit-per-category must be >= 1, got {limit_per_category}")
    wanted = [p for p in prompts if (not categories or p.category in categories) and (not topics or p.topic in topics)]
    if not wanted:
        raise ValueError(f"no prompt is of the categories {list(categories)} and the topics {list(topics)} at once")
    if limit_per_category is None:
        return wanted
    chosen = {
        prompt.question_id
        for category in dict.fromkeys(p.category for p in wanted)
        for prompt in _by_turns([p for p in wanted if p.category == category])[:limit_per_category]
    }
    return [prompt for prompt in wanted if prompt.question_id in chosen]


def _by_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    topics = dict.fromkeys(prompt.topic for prompt in prompts)
    columns = [[prompt for prompt in prompts if prompt.topic == topic] for topic in topics]
    return [prompt for row in zip_longest(*columns) for prompt in row if prompt is not None]


def _check_known(what: str, asked: Iterable[str], existing: Iterable[str]) -> None:
    known = dict.fromkeys(existing)
    for name in asked:
        if name not in known:
            raise ValueError(f"no prompt has the {what} {name!r}; there are {', '.join(known)}")


def encode_prompt(tokenizer: Any, text: str, *, chat: bool | None = None, system: str | None = None) -> list[int]:
    """Token ids of a prompt.

    Args:
        tokenizer: of the model.
        text: what the user says.
        chat: through the tokenizer's chat template (True), as it stands (False), or the first if there is a template.
        system: a system message for the chat template.

    Raises:
        ValueError: the prompt is empty, or a template is needed and there is none.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat is None:
        chat = has_template or system is not None
    if chat and not has_template:
        wanted = "--system" if system is not None else "--chat"
        raise ValueError(
            f"{wanted} needs a chat template and this model's tokenizer has none; use --raw and write the prompt in "
            "full, or choose a model tuned for chat"
        )
    if not chat and system is not None:
        raise ValueError("--system is a message of a chat; with --raw put it into the prompt itself")
    if not text:
        raise ValueError("the prompt is empty: give at least one character")
    if not chat:
        return list(tokenizer(text).input_ids)
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    # the template writes every special token itself
    written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(written, add_special_tokens=False).input_ids)
