"""Prompt files: what is read, what is chosen, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from branchwise.bench.prompts import Prompt, choose_prompts, encode_prompt, read_prompts
from tiny_folder import character_tokenizer

pytestmark = pytest.mark.core


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def question(number: int, **changes: object) -> dict:
    return {"question_id": number, "category": "qa", "topic": "sea", "turns": ["what floats", "and why"]} | changes


def test_only_the_first_turn_is_read(tmp_path: Path) -> None:
    rows = read_prompts(write(tmp_path / "p.jsonl", question(4), "\n", question(5, category="math", topic="sums")))
    assert rows == [Prompt("4", "qa", "sea", "what floats"), Prompt("5", "math", "sums", "what floats")]


def test_a_topic_may_be_absent(tmp_path: Path) -> None:
    row = question(1)
    del row["topic"]
    assert read_prompts(write(tmp_path / "p.jsonl", row))[0].topic == "qa"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((), "p.jsonl holds no prompts"),
        ((question(1), "not json\n"), "line 2 is not a question"),
        (({"question_id": 1, "turns": ["x"]},), "line 1 is not a question .KeyError: 'category'"),
        ((question(1, turns=[]),), "line 1 is not a question"),
        ((question(1, turns=[""]),), "line 1: the first turn must be a string that is not empty"),
        ((question(1), question(1)), "line 2 repeats question_id 1 of line 1"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, rows: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_prompts(write(tmp_path / "p.jsonl", *rows))


#   category a: topics x x x y y, category b: topic z
ROWS = [Prompt(str(i), "a", topic, "text") for i, topic in enumerate("xxxyy")] + [Prompt("5", "b", "z", "text")]


def test_topics_take_turns_under_a_limit() -> None:
    chosen = choose_prompts(ROWS, limit_per_category=3)
    assert [p.question_id for p in chosen] == ["0", "1", "3", "5"], "x, y, x and then b's only one, in file order"


def test_filters() -> None:
    assert [p.question_id for p in choose_prompts(ROWS, categories=["b"])] == ["5"]
    assert [p.question_id for p in choose_prompts(ROWS, topics=["y", "z"])] == ["3", "4", "5"]
    with pytest.raises(ValueError, match="no prompt has the category 'c'; there are a, b"):
        choose_prompts(ROWS, categories=["c"])
    with pytest.raises(ValueError, match="at once"):
        choose_prompts(ROWS, categories=["b"], topics=["x"])
    with pytest.raises(ValueError, match="must be >= 1, got 0"):
        choose_prompts(ROWS, limit_per_category=0)


def test_chat_writes_the_template_once() -> None:
    tokenizer = character_tokenizer(chat=True)
    user, assistant = tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>"])
    ids = encode_prompt(tokenizer, "ab")
    assert ids == [user, *tokenizer("ab", add_special_tokens=False).input_ids, assistant]
