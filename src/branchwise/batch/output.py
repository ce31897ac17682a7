"""The output file, which may be cut off at any byte and continued.

Lines are only ever appended, in the order of the input. A kill leaves a run of whole lines and perhaps the beginning of
one more, which is cut off before anything is added. Knows lines; knows no request.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO


class OutputFile:
    """Appends to a file.

    Args:
        path: where the answers go; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO | None = None

    def recover(self, ids: Iterable[str]) -> tuple[int, int]:
        """Cuts off a torn last line and reads the others through.

        Args:
            ids: ``custom_id`` of the input's rows, in order; as many are taken as there are lines.

        Returns:
            whole lines, and how many of them tell of an error.

        Raises:
            ValueError: a line is not the answer of the row in its place.
        """
        if not self._path.exists():
            return 0, 0
        lines = failed = end = 0
        expected = iter(ids)
        with self._path.open("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                failed += self._is_failure(line, lines, next(expected, None))
                lines += 1
                end += len(line)
        if end < self._path.stat().st_size:
            with self._path.open("r+b") as stream:
                stream.truncate(end)
        return lines, failed

    def _is_failure(self, line: bytes, number: int, expected: str | None) -> bool:
        try:
            record = json.loads(line)
            same = expected is not None and record["custom_id"] == expected
            status = record["response"]["status_code"]
        except (ValueError, KeyError, TypeError):
            same, status = False, 0
        if not same:
            raise ValueError(
                f"line {number + 1} of {self._path} is not the answer of row {number}: somebody changed the file; "
                "take it away and start anew, or give another name"
            )
        return status != 200

    def append(self, line: bytes) -> None:
        """Adds one line; it is the system's before this returns, so a kill cannot lose it.

        Raises:
            OSError: the disk is full; says what is kept.
        """
        if self._stream is None:
            self._stream = self._path.open("ab")
        try:
            self._stream.write(line)
            self._stream.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            message = f"the disk of {self._path} is full; all whole rows are kept. Make room and run the same command"
            raise OSError(errno.ENOSPC, message) from None

    def sync(self) -> None:
        """Has the disk keep what was appended, also when the machine loses its power."""
        if self._stream is not None:
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """The end."""
        if self._stream is not None:
            self.sync()
            self._stream.close()
            self._stream = None


class StandardOutput:
    """The same for a pipe: nothing is there before, and nothing can be continued."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def append(self, line: bytes) -> None:
        """Adds one line."""
        self._stream.write(line)
        self._stream.flush()

    def sync(self) -> None:
        """A pipe keeps nothing."""

    def close(self) -> None:
        """Whose stream it is closes it."""
