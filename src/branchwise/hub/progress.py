"""Showing how far a fetch is: a rich bar on a terminal, a few plain lines on stderr elsewhere, or nothing.

The work reports absolute byte counts to whatever `stage` yields; it does not know who shows them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol, TextIO

ReportDone = Callable[[int], None]
"""Takes the bytes done so far in this stage (not the increment)."""


class Progress(Protocol):
    """Someone who shows stages of work."""

    def stage(self, label: str, total_bytes: int | None = None) -> AbstractContextManager[ReportDone]:
        """One stage from entering to leaving; `total_bytes` None means that its length is not known."""
        ...


class SilentProgress:
    """Shows nothing."""

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[ReportDone]:
        yield lambda done_bytes: None


class PlainProgress:
    """Lines for logs: one at the start of a stage, one per quarter, one at its end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[ReportDone]:
        began = time.monotonic()
        quarters_said = 0

        def report(done_bytes: int) -> None:
            nonlocal quarters_said
            quarters = 4 * done_bytes // total_bytes if total_bytes else 0
            if quarters_said < quarters < 4:
                quarters_said = quarters
                self._say(f"{label}: {25 * quarters}%")

        self._say(label if total_bytes is None else f"{label} ({total_bytes / 1e6:,.0f} MB)")
        yield report
        self._say(f"{label}: done in {time.monotonic() - began:.1f} s")

    def _say(self, line: str) -> None:
        print(f"branchwise: {line}", file=self._stream, flush=True)


class RichProgress:
    """A bar per stage, with bytes and rate where the length is known and a spinner where it is not."""

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[ReportDone]:
        from rich import progress as bars
        from rich.console import Console

        columns: list[bars.ProgressColumn] = [bars.SpinnerColumn(), bars.TextColumn("{task.description}")]
        if total_bytes is not None:
            columns += [bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn()]
        columns.append(bars.TimeElapsedColumn())
        with bars.Progress(*columns, console=Console(file=sys.stderr)) as shown:
            task = shown.add_task(label, total=total_bytes)
            yield lambda done_bytes: shown.update(task, completed=done_bytes)
            shown.update(task, completed=total_bytes or 1, total=total_bytes or 1)


def choose_progress(progress: Progress | Literal["auto"] | None) -> Progress:
    """Turns what a caller may pass into someone to report to: "auto" looks at stderr, None is silence."""
    if progress is None:
        return SilentProgress()
    if progress != "auto":
        return progress
    if sys.stderr.isatty() and _has_rich():
        return RichProgress()
    return PlainProgress()


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True
