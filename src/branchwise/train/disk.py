"""Files that are there whole or not at all, and disks that are too small.

Knows paths and bytes; knows nothing of what the bytes mean.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


class DiskFull(OSError):
    """There is no room for what must be written. What was finished before is kept."""


def write_whole(path: Path, write: Callable[[Path], None], *, what: str) -> None:
    """Writes a file beside its place and moves it there in one step, so that a kill leaves the old one or the new one.

    Args:
        path: where the file belongs.
        write: writes the content to the path it is given.
        what: of the file, for the error.

    Raises:
        DiskFull: no room.
        OSError: it cannot be written for another reason.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(beside)
        with beside.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except Exception as error:
        # safetensors wraps the system's error in one of its own and keeps only its text
        if getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error):
            raise DiskFull(
                errno.ENOSPC,
                f"the disk is full: {what} could not be written to {path.parent}; everything finished before is kept. "
                "Make room and run the same command again",
            ) from error
        raise
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: Any, *, what: str) -> None:
    """Writes JSON the same way."""
    text = json.dumps(content, indent=1) + "\n"

    def write(beside: Path) -> None:
        beside.write_text(text, encoding="utf-8")

    write_whole(path, write, what=what)


def require_room(folder: Path, needed_bytes: int, *, what: str) -> str:
    """Checks that ``what`` fits on the disk before it is begun.

    Returns:
        a line that says what it costs, for the user.

    Raises:
        DiskFull: it does not fit.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free_bytes = shutil.disk_usage(existing).free
    line = f"{what}: {show_bytes(needed_bytes)} on disk, {show_bytes(free_bytes)} free"
    if needed_bytes > free_bytes:
        raise DiskFull(errno.ENOSPC, f"{what} needs {show_bytes(needed_bytes)} in {folder}, and only "
                       f"{show_bytes(free_bytes)} are free: make room, or ask for less")  # fmt: skip
    return line


def show_bytes(count: float) -> str:
    """As people read it: 12 kB, 3.4 MB, 5.6 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
