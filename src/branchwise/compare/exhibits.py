"""What a row shows beside its verdict: charts, masks, trees and tables, as data. Draws nothing.

Each is a plain record that goes into the JSON as it is; `page` turns it into SVG and HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Attributes:
        label: the quantity.
        unit: of its numbers, or empty.
        log: whether equal distances are equal ratios (base 2); for numbers above 0.
    """

    label: str
    unit: str = ""
    log: bool = False


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: as the legend says.
        points: x and y, x rising.
        dashed: for bounds and references, which nobody measured.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True)
class LineChart:
    """Lines over one quantity."""

    kind: ClassVar[str] = "lines"
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars, each of one part or of several one after the other.

    Attributes:
        title: heading.
        axis: what the length means.
        parts: names of the parts.
        bars: label and a number per part.
    """

    kind: ClassVar[str] = "bars"
    title: str
    axis: Axis
    parts: tuple[str, ...]
    bars: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True)
class MaskPicture:
    """A mask as attention got it.

    Attributes:
        title: heading.
        committed: so many committed tokens stand before the nodes (not drawn one by one).
        visible: ``[N][N]``, row = node that looks, column = node that is seen.
        labels: of the nodes.
    """

    kind: ClassVar[str] = "mask"
    title: str
    committed: int
    visible: tuple[tuple[bool, ...], ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class TreePicture:
    """A line, a tree or a graph of tokens.

    Attributes:
        title: heading.
        drawing: as `show.step_json.tree_json` gives it.
    """

    kind: ClassVar[str] = "tree"
    title: str
    drawing: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows under a heading; the first column names the row."""

    kind: ClassVar[str] = "table"
    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = field(default=())


Exhibit = LineChart | BarChart | MaskPicture | TreePicture | Table


def exhibit_record(exhibit: Exhibit) -> dict[str, Any]:
    """For JSON: the fields, and the kind."""
    return {"kind": exhibit.kind, **asdict(exhibit)}
