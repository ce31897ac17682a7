"""The mask of a tree as squares: who sees whom.

Knows steps as JSON objects and matrices of truth values. `MaskGrid` has a twin in ``assets/tree.js``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .svg_parts import INK, LINE, LIT, MONO, PANEL, SANS, SOFT, n, rect, text
from .token_text import shortened

#: cells of a label beside the squares
LABEL_CELLS = 11


def ancestor_matrix(step: Mapping[str, Any]) -> list[list[bool]]:
    """Bool ``[N, N]``: row i marks the ancestors of node i and itself, which is all it sees of the tree."""
    rows: list[list[bool]] = []
    for node, entry in enumerate(step["nodes"]):
        row = [False] * len(step["nodes"])
        for parent in entry.get("parents", [entry["parent"]]) if node else []:
            row = [seen or above for seen, above in zip(row, rows[parent], strict=True)]
        row[node] = True
        rows.append(row)
    return rows


@dataclass(frozen=True)
class MaskGrid:
    """Measures of a drawn mask in pixels.

    Attributes:
        nodes: rows, and columns of the tree.
        cell: side of a square; it shrinks with their number.
        left, top: where the columns and the rows begin.
        committed_width: of the column that stands for all committed tokens, 0 without it.
    """

    nodes: int
    cell: float
    left: float
    top: float
    committed_width: float

    @classmethod
    def of(cls, nodes: int, committed: int | None) -> MaskGrid:
        """The grid of a tree of so many nodes."""
        cell = 22 if nodes <= 12 else 13 if nodes <= 34 else 9 if nodes <= 80 else 4
        return cls(nodes, cell, 104 if cell >= 13 else 18, 34, 0 if committed is None else 62)

    @property
    def start(self) -> float:
        """Where the columns of the tree begin."""
        return self.left + self.committed_width

    @property
    def width(self) -> float:
        """Of the whole drawing."""
        return self.start + self.nodes * self.cell + 14

    @property
    def height(self) -> float:
        """Of the whole drawing."""
        return self.top + self.nodes * self.cell + 14


def mask_parts(
    rows: Sequence[Sequence[bool]], labels: Sequence[str], committed: int | None, grid: MaskGrid
) -> Iterator[str]:
    """The elements of a drawing: frame, lines, committed column, squares, labels."""
    cell, nodes = grid.cell, len(rows)
    bottom, right = grid.top + nodes * cell, grid.start + nodes * cell
    yield rect("bw-grid", grid.left, grid.top, right - grid.left, bottom - grid.top, PANEL, LINE)
    if cell >= 9:
        yield _lines(grid, bottom, right)
    if committed is not None:
        middle = grid.left + grid.committed_width / 2
        yield rect(
            "bw-committed", grid.left + 1, grid.top + 1, grid.committed_width - 2, bottom - grid.top - 2, LIT, None
        )
        yield text("bw-small", middle, grid.top - 18, f"{committed}", SOFT, 10, SANS, "middle")
        yield text("bw-small", middle, grid.top - 6, "committed", SOFT, 10, SANS, "middle")
    yield from _squares(rows, grid)
    if cell >= 13:
        yield from _labels(labels, grid)


def _lines(grid: MaskGrid, bottom: float, right: float) -> str:
    lines = "".join(
        f"M{n(grid.start + i * grid.cell)} {n(grid.top)}V{n(bottom)}"
        f"M{n(grid.start)} {n(grid.top + i * grid.cell)}H{n(right)}"
        for i in range(grid.nodes)
    )
    return f'<path class="bw-gridline" d="{lines}" fill="none" stroke="{LINE}" stroke-width=".5"/>'


def _squares(rows: Sequence[Sequence[bool]], grid: MaskGrid) -> Iterator[str]:
    # one path for all squares of a kind: a tree of 256 nodes has thousands
    side = grid.cell - 2 if grid.cell > 4 else 3
    squares: dict[bool, list[str]] = {False: [], True: []}
    for query, row in enumerate(rows):
        for key, seen in enumerate(row):
            if seen:
                x, y = grid.start + key * grid.cell + 1, grid.top + query * grid.cell + 1
                squares[key == query].append(f"M{n(x)} {n(y)}h{n(side)}v{n(side)}h-{n(side)}z")
    yield f'<path class="bw-seen" d="{"".join(squares[False])}" fill="{LIT}"/>'
    yield f'<path class="bw-self" d="{"".join(squares[True])}" fill="{INK}"/>'


def _labels(labels: Sequence[str], grid: MaskGrid) -> Iterator[str]:
    size = 9.5 if grid.cell < 20 else 11
    for node in range(grid.nodes):
        baseline = grid.top + (node + 0.5) * grid.cell + 3.5
        yield text("bw-small", grid.left - 6, baseline, str(node), SOFT, 9, SANS, "end")
        if labels:
            word = shortened(labels[node], LABEL_CELLS)
            yield text("bw-word", grid.left - 24, baseline, word, INK, size, MONO, "end")
        x = grid.start + (node + 0.5) * grid.cell
        yield text("bw-small", x, grid.top - 6, str(node), SOFT, 8.5 if grid.cell < 20 else 10, SANS, "middle")
