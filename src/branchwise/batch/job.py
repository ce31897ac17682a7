"""A batch from its input to its output, from wherever an earlier run has stopped.

    read the input through    checksum, rows, where the waves begin
    check the output          begun with the same input and settings? cut off a torn line, count whole ones
    answer                    from the wave of the first missing row on; what is there already is not written again

Knows files and order; who answers a wave, and on which machine, is somebody else's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from .answer import Answer
from .output import OutputFile, StandardOutput
from .progress import Tally, shown
from .record import JobRecord, model_identity
from .row import own_id
from .source import InputFile, Wave
from .worker import Work

#: gives the answers of some waves, in order
Answering = Callable[[Sequence[Wave]], Iterable[Answer]]


def run_job(work: Work, out: Path | StandardOutput, wave_rows: int, answering: Answering) -> Tally:
    """Answers every row that has no answer yet.

    Args:
        work: what is asked.
        out: where the answers go.
        wave_rows: rows per wave of ``work.source``.
        answering: called once, with the waves that are left, unless there are none.

    Returns:
        the rows, and how many of them have an error.

    Raises:
        ValueError: the output belongs to another job, or another run is writing it.
        OSError: it cannot be written.
    """
    tally = Tally(work.source.rows)
    if isinstance(out, StandardOutput):
        _answer(work.source.waves, out, answering, tally)
        return tally
    if out.exists() and out.samefile(work.source.path):
        raise ValueError(f"{out} is the input; give the output another name")
    with _alone(out):
        JobRecord(work.source.sha256, work.source.rows, _settings(work, wave_rows)).begin(out)
        file = OutputFile(out)
        tally.done, tally.failed = file.recover(_ids(work.source))
        try:
            left = [wave for wave in work.source.waves if wave.first + wave.rows > tally.done]
            if left:
                _answer(left, file, answering, tally)
        finally:
            file.close()
    return tally


def _answer(waves: Sequence[Wave], out: OutputFile | StandardOutput, answering: Answering, tally: Tally) -> None:
    ends = {wave.first + wave.rows for wave in waves}
    number = waves[0].first
    with shown(tally) as display:
        for answer in answering(waves):
            if number >= tally.done:
                out.append(answer.line)
                tally.add(answer.tokens, answer.failed)
            number += 1
            if number in ends:
                out.sync()
            display.update()
    if number != waves[-1].first + waves[-1].rows:
        raise RuntimeError(f"row {number} was never answered")


def _ids(source: InputFile) -> Iterator[str]:
    for wave in source.waves:
        yield from (own_id(line, number) for number, line in source.lines(wave))


def _settings(work: Work, wave_rows: int) -> dict[str, Any]:
    """All that decides the bytes of the output, beside the input."""
    recipe = asdict(work.recipe)
    for name in ("queue_limit", "model", "draft_model"):
        del recipe[name]
    for name, model in (("model", work.recipe.model), ("draft_model", work.recipe.draft_model)):
        recipe[name] = None if model is None else model_identity(model)
    own = {"wave_rows": wave_rows, "max_row_bytes": work.source.line_bytes, "served_name": work.model_name}
    return {**recipe, **asdict(work.defaults), **own, "branchwise": __version__}


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Nobody else writes the same output meanwhile."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(out.with_name(f".{out.name}.lock"), timeout=0):
            yield
    except Timeout:
        raise ValueError(f"another run is writing {out}; wait for it, or give another name") from None
