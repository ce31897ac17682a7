"""Rows, a tiny model and jobs over them, for the tests of batches."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from branchwise.batch.job import Answering, run_job
from branchwise.batch.progress import Tally
from branchwise.batch.row import RowDefaults
from branchwise.batch.source import InputFile
from branchwise.batch.worker import Work, Worker
from branchwise.decode.recipe import EngineRecipe

WAVE_ROWS = 6
WORDS = ["abcabcabd", "bcd", "abc", "dab", "cabba.", "Hide", "a", "river!", "0123456789"]


def rows(count: int, seed: int = 0) -> list[Any]:
    """All forms and kinds of rows; some cannot be answered."""
    chance = random.Random(seed)
    made: list[Any] = []
    for number in range(count):
        text = "".join(chance.choices(WORDS, k=chance.randint(1, 6)))
        length = chance.randint(1, 24)
        kind = number % 8
        if kind == 0:
            made.append({"prompt": text, "max_tokens": length, "temperature": 0})
        elif kind == 1:  # a seed that follows from the file's
            made.append({"messages": [{"role": "user", "content": text}], "max_tokens": length})
        elif kind == 2:
            body = {"messages": [{"role": "user", "content": text}], "max_completion_tokens": length, "n": 2}
            made.append({"custom_id": f"own {number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
        elif kind == 3:
            made.append({"custom_id": "twice", "body": {"prompt": [text, text[:1]], "max_tokens": 3, "logprobs": 2}})
        elif kind == 4:
            made.append({"prompt": text, "max_tokens": length, "seed": 7, "stop": ["a"], "echo": True})
        elif kind == 5:
            made.append({"prompt": text, "maximum": 3})
        elif kind == 6:
            made.append({"prompt": text * 400})
        else:
            made.append("no JSON at all")
    return made


def write_rows(path: Path, made: Sequence[Any]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in made]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return path


def work_on(
    source: Path, model: Path, wave_rows: int = WAVE_ROWS, defaults: RowDefaults | None = None, **recipe
) -> Work:
    options = {"dtype": "float64", "threads": 1, "drafter": "mixed", "max_lanes": 3, "pool_tokens": 2048, **recipe}
    rows_ = InputFile.read(source, wave_rows, 4096)
    return Work(rows_, defaults or RowDefaults(), EngineRecipe(str(model), **options), "tiny")


def answering(work: Work) -> Answering:
    def answers(waves):
        worker = Worker.load(work)
        for wave in waves:
            yield from worker.answers(wave)

    return answers


def run(work: Work, out: Path, wave_rows: int = WAVE_ROWS) -> Tally:
    return run_job(work, out, wave_rows, answering(work))


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def texts(record: dict[str, Any]) -> list[str]:
    """What a row's choices say."""
    choices = record["response"]["body"]["choices"]
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
