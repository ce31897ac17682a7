"""Showing how far a long run is: one bar on a terminal, a line now and then elsewhere. Knows numbers and words."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

#: seconds between two lines where there is no terminal
LINE_SECONDS = 30.0


class Progress(Protocol):
    """Someone who is told."""

    def update(self, done: float, note: str) -> None:
        """``done`` of the total is finished; ``note`` says how it goes."""
        ...

    def say(self, line: str) -> None:
        """One line that stays."""
        ...


class Lines:
    """Lines for logs, with the rest of the time estimated from the pace of this run."""

    def __init__(self, total: float, stream: TextIO | None = None, every_seconds: float = LINE_SECONDS) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._every = every_seconds
        self._began = time.monotonic()
        self._last = self._began
        self._first_done: float | None = None

    def update(self, done: float, note: str) -> None:
        """See `Progress.update`."""
        now = time.monotonic()
        if self._first_done is None:  # what an earlier run has done is no pace of this one
            self._first_done, self._began = done, now
        if now - self._last < self._every and done < self._total:
            return
        self._last = now
        self.say(f"{100 * done / self._total:5.1f}%  {note}  {self._left(done, now)}")

    def _left(self, done: float, now: float) -> str:
        pace = (done - (self._first_done or 0.0)) / max(now - self._began, 1e-9)
        if pace <= 0 or done >= self._total:
            return ""
        return f"{show_seconds((self._total - done) / pace)} left"

    def say(self, line: str) -> None:
        """See `Progress.say`."""
        print(line.rstrip(), file=self._stream, flush=True)


class Silent:
    """Nobody is told."""

    def update(self, done: float, note: str) -> None:
        """See `Progress.update`."""

    def say(self, line: str) -> None:
        """See `Progress.say`."""


class _Bar:
    def __init__(self, bars, task) -> None:
        self._bars, self._task = bars, task

    def update(self, done: float, note: str) -> None:
        self._bars.update(self._task, completed=done, note=note)

    def say(self, line: str) -> None:
        self._bars.console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def progress(label: str, total: float) -> Iterator[Progress]:
    """A bar on a terminal, lines elsewhere; both on stderr."""
    if not sys.stderr.isatty():
        yield Lines(total)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[note]}"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(file=sys.stderr)) as shown:
        yield _Bar(shown, shown.add_task(label, total=total, note=""))


def show_seconds(seconds: float) -> str:
    """As people read it: 45 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
