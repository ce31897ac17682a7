"""The input file: how many rows it has, whether it is still the same, and the rows of one wave.

A *wave* is a run of consecutive rows that are answered together. Where each one begins is all that is kept of a file,
so a file of millions of rows takes no more memory than a small one. Knows bytes and lines; knows no request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Wave:
    """Where a wave lies.

    Attributes:
        first: number of its first row.
        rows: how many it has.
        offset, size: its bytes in the file.
        sha256: of those bytes.
    """

    first: int
    rows: int
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class InputFile:
    """A file of rows that was read once from end to end.

    Attributes:
        path: where it lies.
        line_bytes: longer lines are refused as rows; they are never held in memory.
        sha256: of the whole file.
        rows: lines that are not blank.
        waves: in order.
    """

    path: Path
    line_bytes: int
    sha256: str
    rows: int
    waves: tuple[Wave, ...]

    @classmethod
    def read(cls, path: Path, wave_rows: int, line_bytes: int) -> InputFile:
        """Reads a file through.

        Raises:
            ValueError: a number is out of range, or there are no rows.
            OSError: the file cannot be read.
        """
        for name, value in (("wave-rows", wave_rows), ("max-row-bytes", line_bytes)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        whole, part = hashlib.sha256(), hashlib.sha256()
        waves: list[Wave] = []
        rows = first = offset = end = 0
        with path.open("rb") as stream:
            for piece, row in _walk(stream, line_bytes):
                whole.update(piece)
                part.update(piece)
                end += len(piece)
                rows += row is not _NO_ROW
                if rows - first == wave_rows:
                    waves.append(Wave(first, wave_rows, offset, end - offset, part.hexdigest()))
                    first, offset, part = rows, end, hashlib.sha256()
        if rows > first:
            waves.append(Wave(first, rows - first, offset, end - offset, part.hexdigest()))
        if not rows:
            raise ValueError(f"{path} has no rows: every line that is not blank is one")
        return cls(path, line_bytes, whole.hexdigest(), rows, tuple(waves))

    def lines(self, wave: Wave) -> Iterator[tuple[int, bytes | None]]:
        """Number and content of every row of a wave; None for a line that is too long.

        Raises:
            ValueError: the file is not what it was; the rows before the end may have been given out.
        """
        digest, number = hashlib.sha256(), wave.first
        with self.path.open("rb") as stream:
            stream.seek(wave.offset)
            for piece, row in _walk(stream, self.line_bytes, wave.size):
                digest.update(piece)
                if row is not _NO_ROW:
                    yield number, None if row is _TOO_LONG else row
                    number += 1
        if digest.hexdigest() != wave.sha256:
            raise ValueError(f"{self.path} has changed while it was read; give the same input again")


#: what a piece of a file ends with, where it is not a row that may be read
_NO_ROW, _TOO_LONG = b"\0no row", b"\0too long"


def _walk(stream: BinaryIO, line_bytes: int, size: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """The next ``size`` bytes, or all, in pieces; with each the row that it ends, if it ends one."""
    left, is_long = float("inf") if size is None else size, False
    while piece := stream.readline(int(min(line_bytes + 1, left))):
        left -= len(piece)
        if len(piece) > line_bytes and not piece.endswith(b"\n"):
            is_long = True
            yield piece, _NO_ROW
            continue
        if is_long:
            yield piece, _TOO_LONG
        else:
            yield piece, piece if piece.strip() else _NO_ROW
        is_long = False
    if is_long:  # the file ends with it
        yield b"", _TOO_LONG
