"""What a forward of so many nodes costs here, learned from the steps that were made.

Knows counts and seconds; knows no tree and no request. On most machines the first nodes are nearly free (a forward is
bound by reading the weights), and from some number on every node costs its arithmetic.

With a measured table only the ratio of the steps to it is learned, as two things: the level, how busy the machine is
now, and the shape, where the table is wrong. So one step says something about every number of nodes, at every context.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median_low

import numpy as np

from .cost_table import Column, CostTable, Numbers, along
from .lane_cost import LaneCost

#: buckets per doubling of the number of nodes
PER_DOUBLING = 2
#: latest steps of a bucket that are remembered; their median is not moved by a hiccup of the machine
REMEMBERED = 8
#: steps after which a bucket that nobody visited is forgotten: contexts have grown or lanes have left
FORGOTTEN_AFTER = 512
#: with a table: latest steps of a bucket that count, and steps that the table itself counts as
REMEMBERED_SHAPE, TABLE_STEPS = 32, 4
#: least share of a step that is its nodes', whatever is said of lanes
LEAST_NODES_SHARE = 0.1
#: numbers of nodes for which seconds are worked out at once, at least
LEAST_CURVE = 48
#: contexts so many tokens apart share one look at the table
NEAR = 32
#: steps that one look at what was learned serves, where they were of numbers of nodes that were seen before
LOOKED_AT_EVERY = 4
#: numbers of nodes that make a column worth keeping, and steps seen of each
COLUMN_NODES, COLUMN_STEPS = 3, 2

_NOTHING_TOLD: tuple[float, Numbers] = (-math.inf, np.empty(0))


@dataclass
class _Bucket:
    """Steps of about one number of nodes: ``(nodes, seconds)`` of the latest, and when the last one was.

    With a table, the ratio to it and to the level of the time is in the place of the seconds.
    """

    steps: deque[tuple[int, float]]
    last: int = 0
    point: tuple[float, float] = (0.0, 0.0)  # mean nodes and median seconds

    def add(self, step: int, nodes: int, seconds: float) -> None:
        """Books a step."""
        self.last = step
        self.steps.append((nodes, seconds))
        mean = sum(nodes for nodes, _ in self.steps) / len(self.steps)
        self.point = mean, median_low([seconds for _, seconds in self.steps])


class CostCurve:
    """Seconds of a step of one lane by the nodes of its tree: straight lines between what was seen.

    Steps of several lanes take `beside` in addition, and the nodes of all their trees count together.

    Beyond the largest number seen the last slope goes on; with one number seen nothing is known of a slope, and more
    nodes are taken to be free: so they are tried, and then it is known. Costs never fall with the number.

    Args:
        table: what was measured before, on this machine with this model.
        rows_at_once: nodes that one pass over the weights serves, if there is such an edge; see `along`.
    """

    def __init__(self, table: CostTable | None = None, rows_at_once: int | None = None) -> None:
        self._rows_at_once = rows_at_once
        self.table = None if table is None else table.in_passes_of(rows_at_once)
        self._lanes = LaneCost()
        self._trust = TABLE_STEPS
        self._buckets: dict[tuple[int, int], _Bucket] = {}
        self._ratios: deque[float] = deque(maxlen=REMEMBERED)  # of the latest steps to the table
        self._step = 0
        self._told = _NOTHING_TOLD  # the table's own curve, and for which context
        self._curve: list[float] | None = None
        self._curve_context = -math.inf
        self._curve_step = 0

    def learn(self, nodes: int, seconds: float, context: float = 0.0, lanes: int = 1) -> None:
        """Books one step.

        Args:
            nodes: of all trees.
            seconds: it took.
            context: committed tokens of a lane; only a table knows what to do with it.
            lanes: that took part.
        """
        self._step += 1
        key = round(PER_DOUBLING * math.log2(nodes))
        self._lanes.learn(key, lanes, nodes, seconds)
        seconds = max(seconds - self.beside(lanes), LEAST_NODES_SHARE * seconds)
        value, remembered = seconds, REMEMBERED
        if self.table is not None:
            ratio = seconds / float(self._table_up_to(nodes, context)[nodes - 1])
            self._ratios.append(ratio)
            value, remembered = ratio / self._level, REMEMBERED_SHAPE
        passes = -(-nodes // self._rows_at_once) if self._rows_at_once else 1
        bucket = self._buckets.setdefault((key, passes), _Bucket(deque(maxlen=remembered)))
        is_known = len(bucket.steps) >= REMEMBERED
        bucket.add(self._step, nodes, value)
        oldest = self._step - FORGOTTEN_AFTER
        self._buckets = {number: kept for number, kept in self._buckets.items() if kept.last >= oldest}
        if not is_known or self._step - self._curve_step >= LOOKED_AT_EVERY:
            self._curve = None

    @property
    def _level(self) -> float:
        """How busy the machine is: the latest steps' seconds, as a multiple of the table's."""
        return median_low(self._ratios) if self._ratios else 1.0

    def adopt(self, table: CostTable) -> None:
        """From now on only the ratio to a table is learned, one that was made of what is known."""
        self.table = table.in_passes_of(self._rows_at_once)
        self._trust = COLUMN_STEPS
        self._buckets.clear()
        self._ratios.clear()
        self._told = _NOTHING_TOLD
        self._curve = None

    def beside(self, lanes: int) -> float:
        """What a step of so many lanes takes more than one of a single lane with as many nodes."""
        return self._lanes.seconds(lanes)

    def seconds(self, nodes: float, context: float = 0.0) -> float:
        """Estimate for a step of so many nodes; 1 before anything is known."""
        whole = int(nodes)
        curve = self._up_to(whole + 1, context)
        return curve[whole - 1] + (nodes - whole) * (curve[whole] - curve[whole - 1])

    def profile(self, most: int, context: float = 0.0) -> list[float]:
        """The same for 1, 2, ... ``most`` nodes; never falling."""
        return self._up_to(most, context)[:most]

    def _up_to(self, most: int, context: float) -> list[float]:
        """Kept for some steps, as many numbers are asked of one state and a few steps more change little."""
        if self._curve is None or len(self._curve) < most or abs(self._curve_context - context) > NEAR:
            self._curve = self._estimate(max(most, LEAST_CURVE), context).tolist()
            self._curve_context, self._curve_step = context, self._step
        return self._curve

    def _estimate(self, most: int, context: float) -> Numbers:
        places, values = self._known()
        nodes = np.arange(1.0, most + 1)
        if self.table is None:
            return along(places, values, nodes, self._rows_at_once) if places else np.ones(most)
        base = self._table_up_to(most, context)[:most] * self._level
        return base if not places else np.maximum.accumulate(base * np.interp(nodes, places, values))

    def _table_up_to(self, most: int, context: float) -> Numbers:
        """What the table says of 1, 2, ... nodes, at least so many."""
        assert self.table is not None, "who asks has one"
        near, told = self._told
        if len(told) < most or abs(near - context) > NEAR:
            told = self.table.profile(np.arange(1.0, max(most, LEAST_CURVE) + 1), context)
            self._told = context, told
        return told

    def column(self, context: int) -> Column | None:
        """What is known by now, as a column of a table for that context; None while it is too little.

        Steps of many lanes say nothing of a single node, and a table without it would mislead whoever decodes one text.
        """
        if self.table is not None:
            # where nothing was seen the table's own shape is the best guess
            nodes = sorted({count for column in self.table.columns for count in column.nodes})
            self._told, self._curve = _NOTHING_TOLD, None  # not those of a context near it
        else:
            seen = [bucket.point for bucket in self._buckets.values() if len(bucket.steps) >= COLUMN_STEPS]
            nodes = sorted({round(place) for place, _ in seen})
            if len(nodes) < COLUMN_NODES or nodes[0] > 1:
                return None
        return Column(context, tuple(nodes), tuple(self.seconds(count, context) for count in nodes))

    def _known(self) -> tuple[list[float], Numbers]:
        """Points of rising nodes: of never falling seconds, or with a table of the ratios to it."""
        found = sorted((bucket.point, len(bucket.steps)) for bucket in self._buckets.values())
        if self.table is not None:
            # a few steps say little against a measurement
            shrunk = [(steps * ratio + self._trust) / (steps + self._trust) for (_, ratio), steps in found]
            return [nodes for (nodes, _), _ in found], np.array(shrunk)
        places: list[float] = []
        heights: list[float] = []
        highest = 0.0
        for (nodes, seconds), _ in found:
            highest = max(highest, seconds)
            if places and nodes <= places[-1]:
                continue
            places.append(nodes)
            heights.append(highest)
        return places, np.array(heights)
