"""The questions of an evaluation: from a file, by category where it has them, or held-out ones of the data.

Knows prompt files and pieces of data; knows no head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench.prompts import Prompt, choose_prompts, encode_prompt, read_prompts
from .corpus import Piece
from .plans import read_prompts_file
from .shards import ANSWER


@dataclass(frozen=True)
class Question:
    """One prompt.

    Attributes:
        tokens: ids, with the template up to the answer.
        category: what results are grouped by; empty where there are none.
    """

    tokens: tuple[int, ...]
    category: str = ""


def read_questions(path: Path, limit: int | None, per_category: int | None) -> list[Prompt]:
    """The prompts of a file: those of a benchmark (``question_id``, ``category``, ``turns``), or as for `train data`.

    Args:
        path: the file.
        limit: most prompts in all.
        per_category: most of one category, whose topics take turns.

    Raises:
        ValueError: a line is no prompt, or ``per_category`` is given and there are no categories.
    """
    text = path.read_text(encoding="utf-8")
    first = next((line for line in text.splitlines() if line.strip()), "")
    if path.suffix == ".jsonl" and '"category"' in first:
        return choose_prompts(read_prompts(path), limit_per_category=per_category)[:limit]
    if per_category is not None:
        raise ValueError(f"{path.name} has no categories: leave --limit-per-category out")
    return [Prompt(str(n), "", "", prompt) for n, prompt in enumerate(read_prompts_file(path)[:limit])]


def encoded(prompts: Sequence[Prompt], tokenizer: Any) -> list[Question]:
    """The prompts as the target reads them."""
    return [Question(tuple(encode_prompt(tokenizer, prompt.text)), prompt.category) for prompt in prompts]


def held_out_questions(pieces: Sequence[Piece], limit: int | None) -> list[Question]:
    """The questions of held-out dialogues."""
    found = []
    for piece in pieces:
        roles = piece.sequence.roles.tolist()
        if ANSWER in roles and roles.index(ANSWER) > 0:
            found.append(Question(tuple(piece.sequence.tokens[: roles.index(ANSWER)].tolist())))
    return found[:limit]
