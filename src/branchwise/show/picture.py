"""A step as PNG, drawn with matplotlib (extra ``plot``) from the layout that the SVG has.

Knows the layout and the looks. Pixels are those of the SVG, times ``SCALE``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .layout import BADGE_WIDTH, BOX_PADDING, COLUMN_GAP, MOST_CELLS, Box, has_probabilities, lay_out
from .looks import LOOKS, SAMPLE_WIDTH, describe, entry_of, facts_of, key_items, kind_of, parents_of
from .mask import LABEL_CELLS, MaskGrid, ancestor_matrix
from .sources import COLOURS, badge
from .svg import GAP, HEADING_HEIGHT, KEY_HEIGHT
from .svg_parts import BACK, INK, LINE, LIT, PANEL, SOFT
from .token_text import shortened

SCALE = 2
#: matplotlib draws no wider picture than 65,535 pixels; very large trees are drawn smaller
MOST_PIXELS = 30_000
#: matplotlib measures in inches and points
PIXELS_PER_INCH, POINTS_PER_PIXEL = 100, 0.72
#: matplotlib brings these along; characters that the first lacks are taken from the second
FONTS = {"mono": ["DejaVu Sans Mono", "DejaVu Sans"], "sans": ["DejaVu Sans"]}


def check_pictures() -> None:
    """Raises now rather than after the generation.

    Raises:
        ImportError: matplotlib is missing; names the extra.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError(
            "PNG needs the package matplotlib: pip install 'branchwise[plot]' (SVG needs nothing)"
        ) from None


def write_png(step: Mapping[str, Any], path: Path, title: str = "") -> None:
    """Draws tree and mask of a step side by side, light, with a heading.

    Args:
        step: as `step_json` gives it.
        path: of the file.
        title: heading; by default it counts nodes and accepted tokens.
    """
    from matplotlib.figure import Figure

    layout, grid = lay_out(step), MaskGrid.of(len(step["nodes"]), step["committed"])
    width = max(layout.width + GAP + grid.width, key_items(step)[1] + 2 * GAP)
    bottom = HEADING_HEIGHT + max(layout.height, grid.height)
    height = bottom + KEY_HEIGHT
    figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH), facecolor=BACK)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)  # y grows downwards, as in the SVG
    axes.axis("off")
    pen = _Pen(axes)
    pen.text(GAP, 23, title or describe(step), INK, 15, "sans", weight="bold")
    _draw_tree(pen.at(0, HEADING_HEIGHT), step, layout.boxes)
    _draw_mask(pen.at(layout.width + GAP, HEADING_HEIGHT), step, grid)
    _draw_key(pen.at(GAP, bottom), step)
    with warnings.catch_warnings():
        # a character that no font has is a box in the picture, where it can be seen
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        # the name without a folder, so that the picture says nothing about the machine
        scale = min(SCALE, MOST_PIXELS / max(width, height))
        figure.savefig(path, dpi=PIXELS_PER_INCH * scale, metadata={"Title": path.name})


class _Pen:
    """Draws in pixels from a corner on."""

    def __init__(self, axes: Any, x: float = 0.0, y: float = 0.0) -> None:
        self._axes, self._x, self._y = axes, x, y

    def at(self, x: float, y: float) -> _Pen:
        return _Pen(self._axes, x, y)

    def text(
        self,
        x: float,
        y: float,
        said: str,
        ink: str,
        size: float,
        font: str,
        align: str = "left",
        weight: str = "normal",
    ) -> None:
        self._axes.text(
            self._x + x,
            self._y + y,
            said,
            color=ink,
            fontsize=size * POINTS_PER_PIXEL,
            fontfamily=FONTS[font],
            fontweight=weight,
            ha=align,
            va="baseline",
            parse_math=False,  # a dollar is a dollar
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        border: str = "none",
        thickness: float = 0.0,
        dashed: bool = False,
        radius: float = 0.0,
        opacity: float = 1.0,
    ) -> None:
        from matplotlib.patches import FancyBboxPatch

        self._axes.add_patch(
            FancyBboxPatch(
                (self._x + x, self._y + y),
                width,
                height,
                boxstyle=f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0",
                facecolor=fill,
                edgecolor=border,
                linewidth=thickness * POINTS_PER_PIXEL,
                linestyle=(0, (3, 2.5)) if dashed else "solid",
                alpha=opacity,
            )
        )

    def squares(self, corners: Sequence[tuple[float, float]], side: float, fill: str) -> None:
        """Many at once: a tree of 256 nodes has thousands."""
        from matplotlib.collections import PolyCollection

        around = ((0, 0), (side, 0), (side, side), (0, side))
        outlines = [[(self._x + x + dx, self._y + y + dy) for dx, dy in around] for x, y in corners]
        self._axes.add_collection(PolyCollection(outlines, facecolors=fill, linewidths=0), autolim=False)

    def curve(self, parent: Box, child: Box, colour: str, thickness: float) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Curve

        x1, x2, y1, y2 = parent.x + parent.width, child.x, parent.middle, child.middle
        bend = COLUMN_GAP / 2
        points = [(x1, y1), (x1 + bend, y1), (x2 - bend, y2), (x2, y2)]
        moved = [(self._x + x, self._y + y) for x, y in points]
        path = Curve(moved, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        self._axes.add_patch(
            PathPatch(path, facecolor="none", edgecolor=colour, linewidth=thickness * POINTS_PER_PIXEL)
        )


def _draw_tree(pen: _Pen, step: Mapping[str, Any], boxes: tuple[Box, ...]) -> None:
    two_lines = has_probabilities(step)
    for node, box in enumerate(boxes):
        lit = kind_of(step, node) in ("accepted", "bonus")
        for parent in parents_of(step, node):
            pen.curve(boxes[parent], box, LIT if lit else LINE, 3.5 if lit else 1.5)
    for node, box in enumerate(boxes):
        _draw_box(pen, step, node, box, facts_of(step, node) if two_lines else [])


def _draw_box(pen: _Pen, step: Mapping[str, Any], node: int, box: Box, facts: list[str]) -> None:
    kind, entry = kind_of(step, node), entry_of(step, node)
    look = LOOKS[kind]
    radius = box.height / 2 - 1 if kind == "bonus" else 7
    pen.box(box.x, box.y, box.width, box.height, look.fill, look.border, look.thickness, look.is_dashed, radius)
    edge = BOX_PADDING + (box.height / 4 if kind == "bonus" else 0)
    indent = edge
    if kind != "bonus" and entry["source"] is not None:
        _draw_badge(pen, entry["source"], box.x + 5, box.y + 5)
        indent = BADGE_WIDTH + BOX_PADDING
    label, weight = shortened(entry["text"], MOST_CELLS), "bold" if look.is_bold else "normal"
    pen.text(box.x + indent, box.y + 18, label, look.ink, 13, "mono", weight=weight)
    for place, fact in enumerate(facts):
        x, align = (box.x + edge, "left") if place == 0 else (box.x + box.width - BOX_PADDING, "right")
        pen.text(x, box.y + box.height - 8, fact, SOFT, 10, "sans", align)


def _draw_mask(pen: _Pen, step: Mapping[str, Any], grid: MaskGrid) -> None:
    cell, nodes = grid.cell, len(step["nodes"])
    pen.box(grid.left, grid.top, grid.start - grid.left + nodes * cell, nodes * cell, PANEL, LINE, 1)
    if step["committed"] is not None:
        middle = grid.left + grid.committed_width / 2
        pen.box(grid.left + 1, grid.top + 1, grid.committed_width - 2, nodes * cell - 2, LIT, opacity=0.5)
        pen.text(middle, grid.top - 18, str(step["committed"]), SOFT, 10, "sans", "center")
        pen.text(middle, grid.top - 6, "committed", SOFT, 10, "sans", "center")
    squares: dict[str, list[tuple[float, float]]] = {LIT: [], INK: []}
    for query, row in enumerate(ancestor_matrix(step)):
        y = grid.top + query * cell
        for key, seen in enumerate(row):
            if seen:
                squares[INK if key == query else LIT].append((grid.start + key * cell + 1, y + 1))
        if cell >= 13:
            baseline = y + cell / 2 + 3.5
            pen.text(grid.left - 6, baseline, str(query), SOFT, 9, "sans", "right")
            word = shortened(step["nodes"][query]["text"], LABEL_CELLS)
            pen.text(grid.left - 24, baseline, word, INK, 9.5 if cell < 20 else 11, "mono", "right")
            pen.text(grid.start + (query + 0.5) * cell, grid.top - 6, str(query), SOFT, 8.5, "sans", "center")
    for colour, corners in squares.items():
        pen.squares(corners, cell - 2 if cell > 4 else 3, colour)


def _draw_badge(pen: _Pen, source: str, x: float, y: float) -> None:
    mark, width = badge(source), BADGE_WIDTH - 3
    colour, ink = COLOURS[mark.slot]
    pen.box(x, y, width, 16, colour, radius=4)
    pen.text(x + width / 2, y + 11.5, mark.letters, ink, 9.5, "sans", "center")


def _draw_key(pen: _Pen, step: Mapping[str, Any]) -> None:
    for item in key_items(step)[0]:
        if item.source:
            _draw_badge(pen, item.source, item.x, 6)
        else:
            look = LOOKS[item.kind]
            radius = 7.5 if item.kind == "bonus" else 4
            pen.box(item.x, 6, SAMPLE_WIDTH, 16, look.fill, look.border, look.thickness, look.is_dashed, radius)
        pen.text(item.x + SAMPLE_WIDTH + 6, 18, item.word, INK, 12, "sans")
