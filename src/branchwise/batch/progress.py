"""Showing how far a batch is: a bar on a terminal, a line now and then elsewhere. Knows counts and seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

#: seconds between two lines where there is no terminal
LINE_SECONDS = 30.0


@dataclass
class Tally:
    """Rows and tokens of one run.

    Attributes:
        rows: of the whole input.
        done: of these, answered in this run or an earlier one.
        failed: of these, with an error.
        fresh: answered in this run.
        tokens: generated in this run for rows that were written.
    """

    rows: int
    done: int = 0
    failed: int = 0
    fresh: int = 0
    tokens: int = 0

    def add(self, tokens: int, failed: bool) -> None:
        """One more row."""
        self.done += 1
        self.fresh += 1
        self.failed += failed
        self.tokens += tokens


class Pace:
    """How fast a tally grows, and how long the rest takes at that pace.

    Args:
        tally: as it was when this run began.
        clock: seconds.
    """

    def __init__(self, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        self._tally = tally
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        """Since this run began."""
        return max(self._clock() - self._began, 1e-9)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens."""
        return self._tally.tokens / self.seconds

    @property
    def left(self) -> float | None:
        """Seconds until the end; None before anything is known. What an earlier run has done is no pace of this one."""
        if not self._tally.fresh:
            return None
        return (self._tally.rows - self._tally.done) * self.seconds / self._tally.fresh

    def line(self) -> str:
        """Everything in words."""
        tally = self._tally
        failed = f", {tally.failed} with an error" if tally.failed else ""
        left = "" if self.left is None else f", {show_seconds(self.left)} left"
        return f"{tally.done} of {tally.rows} rows{failed}, {self.tokens_per_second:.1f} tokens/s{left}"


class _Lines:
    def __init__(self, pace: Pace, stream: TextIO, every_seconds: float) -> None:
        self._pace, self._stream, self._every = pace, stream, every_seconds
        self._said = 0.0

    def update(self) -> None:
        if self._pace.seconds - self._said >= self._every:
            self._said = self._pace.seconds
            print(f"branchwise: {self._pace.line()}", file=self._stream, flush=True)


class _Bar:
    def __init__(self, pace: Pace, tally: Tally, bars: Any, task: Any) -> None:
        self._pace, self._tally, self._bars, self._task = pace, tally, bars, task

    def update(self) -> None:
        self._bars.update(self._task, completed=self._tally.done, note=self._pace.line())


@contextmanager
def shown(tally: Tally, stream: TextIO | None = None, every_seconds: float = LINE_SECONDS) -> Iterator[Any]:
    """Something with an ``update`` to call after every row; everything goes to stderr."""
    stream = stream or sys.stderr
    pace = Pace(tally)
    if not stream.isatty():
        yield _Lines(pace, stream, every_seconds)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.BarColumn(), bars.TaskProgressColumn(), bars.TextColumn("{task.fields[note]}"))
    with bars.Progress(*columns, console=Console(file=stream)) as display:
        yield _Bar(pace, tally, display, display.add_task("", total=tally.rows, completed=tally.done, note=""))


def show_seconds(seconds: float) -> str:
    """As people read it: 45 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
