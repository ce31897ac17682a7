"""A measured cost curve: seconds of one forward by the nodes of its trees and by the committed tokens before them.

Knows numbers; knows neither how they were measured (`measure`) nor where they are kept (`curve_store`). As JSON:

    {
      "schema": "branchwise-cost-table/1",
      "key": {"engine": "transformers", "dtype": "bfloat16", "threads": 2, ...},     what was measured, see `curve_key`
      "columns": [                                                                   one per context, contexts rising
        {"context": 256, "nodes": [1, 8, 16], "seconds": [0.0390, 0.0447, 0.0520]},  nodes rising, one time for each
        {"context": 4096, "nodes": [1, 16], "seconds": [0.0630, 0.1340]}             columns may differ in nodes
      ]
    }

``context`` are committed tokens of every lane; ``nodes`` are those of all trees of the forward, roots included.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

SCHEMA = "branchwise-cost-table/1"


@dataclass(frozen=True)
class Column:
    """The curve at one context.

    Attributes:
        context: committed tokens.
        nodes: rising, from 1 on.
        seconds: of one forward with so many nodes.
        rows_at_once: see `along`; what the target says of itself, and no part of the file.

    Raises:
        ValueError: the lists do not fit each other, or hold what no measurement gives.
    """

    context: int
    nodes: tuple[int, ...]
    seconds: tuple[float, ...]
    rows_at_once: int | None = None

    def __post_init__(self) -> None:
        if self.context < 0:
            raise ValueError(f"a context has at least 0 tokens, got {self.context}")
        if not self.nodes or len(self.nodes) != len(self.seconds):
            raise ValueError(f"{len(self.nodes)} numbers of nodes and {len(self.seconds)} times make no curve")
        if self.nodes[0] < 1 or any(left >= right for left, right in pairwise(self.nodes)):
            raise ValueError(f"nodes must be rising and >= 1, got {list(self.nodes)}")
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in self.seconds):
            raise ValueError(f"seconds must be finite and > 0, got {list(self.seconds)}")

    def at(self, nodes: Sequence[float] | Numbers) -> Numbers:
        """Seconds of forwards of so many nodes: straight lines, the last of which goes on; never falling."""
        places, heights = self._points
        return along(places, heights, nodes, self.rows_at_once)

    @cached_property
    def _points(self) -> tuple[Numbers, Numbers]:
        return np.array(self.nodes, np.float64), np.maximum.accumulate(self.seconds)


@dataclass(frozen=True)
class CostTable:
    """Columns for several contexts.

    Attributes:
        columns: at least one, contexts rising.

    Raises:
        ValueError: no column, or two of one context.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        contexts = self.contexts
        if not contexts or list(contexts) != sorted(set(contexts)):
            raise ValueError(f"a cost table needs columns of rising contexts, got {list(contexts)}")

    @cached_property
    def contexts(self) -> tuple[int, ...]:
        """Committed tokens of every column."""
        return tuple(column.context for column in self.columns)

    def profile(self, nodes: Sequence[float] | Numbers, context: float) -> Numbers:
        """Seconds of forwards of so many nodes at one context.

        Between the columns it never falls with nodes or context. Beyond them it goes on as between the last two.
        """
        contexts = self.contexts
        if len(contexts) == 1 or context <= contexts[0]:
            return self.columns[0].at(nodes)
        times = np.maximum.accumulate([column.at(nodes) for column in self.columns])  # [contexts, nodes]
        right = min(bisect_left(contexts, context), len(contexts) - 1)
        left = right - 1
        share = (context - contexts[left]) / (contexts[right] - contexts[left])
        return times[left] + share * (times[right] - times[left])

    def seconds(self, nodes: float, context: float) -> float:
        """The same for one number of nodes."""
        return float(self.profile([nodes], context)[0])

    def in_passes_of(self, rows_at_once: int | None) -> CostTable:
        """The same for a target that works through so many rows at once."""
        return CostTable(tuple(replace(column, rows_at_once=rows_at_once) for column in self.columns))

    def with_column(self, column: Column) -> CostTable:
        """The same with another column; it replaces one of the same context."""
        others = [known for known in self.columns if known.context != column.context]
        return CostTable(tuple(sorted([*others, column], key=lambda known: known.context)))

    def as_dict(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """For JSON; see the module."""
        columns = [
            {"context": column.context, "nodes": list(column.nodes), "seconds": list(column.seconds)}
            for column in self.columns
        ]
        return {"schema": SCHEMA, "key": dict(key), "columns": columns}

    @classmethod
    def from_dict(cls, found: Any) -> CostTable:
        """Reads what `as_dict` wrote.

        Raises:
            ValueError: it is anything else; says what.
        """
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise ValueError(f"not a cost table of the schema {SCHEMA!r}")
        try:
            columns = [
                Column(_whole(row["context"]), tuple(map(_whole, row["nodes"])), tuple(map(float, row["seconds"])))
                for row in found["columns"]
            ]
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"a column of the cost table cannot be read ({type(error).__name__}: {error})") from None
        return cls(tuple(columns))


def along(
    places: Sequence[float] | Numbers,
    heights: Numbers,
    wanted: Sequence[float] | Numbers,
    rows_at_once: int | None = None,
) -> Numbers:
    """Heights on straight lines through the points: level before the first, beyond the last one as the last line.

    Args:
        places: numbers of nodes, rising.
        heights: what they cost.
        wanted: numbers of nodes.
        rows_at_once: nodes that are served by one pass over the weights: the first node of another pass is taken to
            cost as much as a whole pass more of them. None where there is no such edge.
    """
    places, wanted = (_spread(np.asarray(nodes, np.float64), rows_at_once) for nodes in (places, wanted))
    inside = np.interp(wanted, places, heights)
    if len(places) == 1:
        return inside
    slope = (heights[-1] - heights[-2]) / (places[-1] - places[-2])
    return inside + slope * np.maximum(0.0, wanted - places[-1])


def _spread(nodes: Numbers, rows_at_once: int | None) -> Numbers:
    """Numbers of nodes on an axis with a gap, as wide as a pass, before every pass but the first."""
    if rows_at_once is None:
        return nodes
    return nodes + rows_at_once * np.maximum(0.0, np.ceil(nodes / rows_at_once) - 1)


def _whole(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"a cost table counts in whole numbers, got {number!r}")
    return number
