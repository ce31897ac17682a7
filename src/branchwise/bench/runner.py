"""Methods side by side: every prompt through every method, in turns, in one process.

The order of the methods rotates from prompt to prompt, so that none is always first or always behind the same one. Each
method runs one warm-up prompt that is not counted. A method that fails is taken out of the rotation and its error kept.

Knows methods and prompts; the arithmetic of the results is in `summary`, their printing in `report`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..warning import BranchwiseWarning
from .methods import Method, Run
from .prompts import Prompt

WARM_UP_TOKENS = 16


@dataclass(frozen=True, eq=False)
class Row:
    """One prompt through one method."""

    prompt: Prompt
    prompt_tokens: int
    method: str
    place: int  # in this prompt's order of methods, from 0
    run: Run

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        timing, run = self.run.timing, self.run
        parts = {part: sum(getattr(step, part) for step in run.decode_steps) for part in PARTS}
        return {
            "question_id": self.prompt.question_id,
            "category": self.prompt.category,
            "topic": self.prompt.topic,
            "method": self.method,
            "place": self.place,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": len(run.tokens),
            "steps": timing.runs,
            "tokens_per_step": round(len(run.tokens) / timing.runs, 4),
            "first_run_tokens": timing.first_run_tokens,
            "first_run_seconds": round(timing.first_run_seconds, 6),
            "decode_tokens": timing.decode_tokens,
            "decode_seconds": round(timing.decode_seconds, 6),
            "cpu_seconds": round(timing.cpu_seconds, 6),
            "tokens_per_second": round(rate(timing.decode_tokens, timing.decode_seconds), 3),
            "part_seconds": {part: round(seconds, 6) for part, seconds in parts.items()} if run.decode_steps else None,
            "token_ids": list(run.tokens),
        }


#: the parts of a step that `decode` times
PARTS = ("draft", "forward", "verify", "commit", "other")


def rate(tokens: int, seconds: float) -> float:
    """Tokens per second; 0 when nothing was decoded after the first run."""
    return tokens / seconds if tokens and seconds else 0.0


@dataclass(eq=False)
class Results:
    """What a run gave.

    Attributes:
        methods: names in the order asked for, failed ones too.
        rows: one per prompt and method that ran.
        errors: why a method failed, by name.
        skipped: prompts that do not fit the model's context with the new tokens, with the reason.
        interrupted: Ctrl-C came before the last prompt; the rows are those of the prompts that were done.
    """

    methods: list[str]
    rows: list[Row] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def of(self, method: str) -> list[Row]:
        """The rows of one method."""
        return [row for row in self.rows if row.method == method]


def run_methods(
    makers: dict[str, Callable[[], Method]],
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    *,
    warm_up: Sequence[int],
    max_new_tokens: int,
    seed: int = 0,
    context_limit: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Results:
    """Runs everything.

    Args:
        makers: a method by name; making it may fail, too.
        prompts: what to run, with the token ids of each.
        warm_up: token ids of a prompt that is not counted.
        max_new_tokens: per prompt.
        seed: prompt i samples with ``seed + i`` in every method.
        context_limit: prompts that would not fit are skipped, and listed.
        progress: told one line after every prompt.
    """
    results = Results(list(makers))
    methods: dict[str, Method] = {}
    for name, make in makers.items():
        method = _attempt(results, name, make)
        if method is not None:
            tokens = min(WARM_UP_TOKENS, max_new_tokens)
            if _attempt(results, name, partial(method.run, warm_up, tokens, seed)) is not None:
                methods[name] = method

    def run_prompt(index: int, prompt: Prompt, ids: Sequence[int]) -> list[Row]:
        rows = []
        for place, name in enumerate(rotated([n for n in makers if n in methods], index)):
            run = _attempt(results, name, partial(methods[name].run, ids, max_new_tokens, seed + index))
            if run is None:
                del methods[name]
                continue
            rows.append(Row(prompt, len(ids), name, place, run))
        return rows

    for index, (prompt, ids) in enumerate(prompts):
        if context_limit is not None and len(ids) + max_new_tokens > context_limit:
            results.skipped[prompt.question_id] = (
                f"{len(ids)} prompt tokens and {max_new_tokens} new ones exceed the context of {context_limit}"
            )
            continue
        try:
            results.rows += run_prompt(index, prompt, ids)
        except KeyboardInterrupt:
            if not results.rows:
                raise
            results.interrupted = True  # an hour of measuring is not thrown away
            break
        progress(f"{index + 1}/{len(prompts)} {prompt.category} {prompt.question_id}")
    return results


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names, beginning with another one at every turn."""
    start = turn % len(names) if names else 0
    return [*names[start:], *names[:start]]


def _attempt(results: Results, name: str, act: Callable[[], Any]) -> Any:
    """What ``act`` returns, or None when it failed; the error is noted under the method's name."""
    try:
        with warnings.catch_warnings():
            # a drafter that gave up would be measured as plain decoding under its own name
            warnings.simplefilter("error", BranchwiseWarning)
            return act()
    except Exception as error:
        results.errors[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return None
