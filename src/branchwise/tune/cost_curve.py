"""What a forward of so many nodes costs here, learned from the steps that were made.

Knows counts and seconds; knows no tree and no request. On most machines the first nodes are nearly free (a forward is
bound by reading the weights), and from some number on every node costs its arithmetic.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low

#: buckets per doubling of the number of nodes
PER_DOUBLING = 2
#: latest steps of a bucket that are remembered; their median is not moved by a hiccup of the machine
REMEMBERED = 8
#: steps after which a bucket that nobody visited is forgotten: contexts have grown or lanes have left
FORGOTTEN_AFTER = 512


@dataclass
class _Bucket:
    """Steps of about one number of nodes: ``(nodes, seconds)`` of the latest, and when the last one was."""

    steps: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    last: int = 0

    @property
    def point(self) -> tuple[float, float]:
        """Mean nodes and median seconds."""
        nodes = sum(nodes for nodes, _ in self.steps) / len(self.steps)
        return nodes, median_low([seconds for _, seconds in self.steps])


class CostCurve:
    """Seconds of a step by the nodes of all its trees together: straight lines between what was seen.

    Beyond the largest number seen the last slope goes on; with one number seen nothing is known of a slope, and more
    nodes are taken to be free: so they are tried, and then it is known. Costs never fall with the number.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._step = 0
        self._points: list[tuple[float, float]] | None = None

    def learn(self, nodes: int, seconds: float) -> None:
        """Books one step."""
        self._step += 1
        bucket = self._buckets.setdefault(round(PER_DOUBLING * math.log2(nodes)), _Bucket())
        bucket.steps.append((nodes, seconds))
        bucket.last = self._step
        old = [key for key, kept in self._buckets.items() if self._step - kept.last > FORGOTTEN_AFTER]
        for key in old:
            del self._buckets[key]
        self._points = None

    def knows(self, nodes: int) -> int:
        """Remembered steps of about so many nodes."""
        bucket = self._buckets.get(round(PER_DOUBLING * math.log2(nodes)))
        return len(bucket.steps) if bucket else 0

    def seconds(self, nodes: float) -> float:
        """Estimate for a step of so many nodes; 1 before anything is known."""
        points = self._known()
        if not points:
            return 1.0
        if nodes <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in pairwise(points):
            if nodes <= right:
                return low + (high - low) * (nodes - left) / (right - left)
        if len(points) == 1:
            return points[0][1]
        (left, low), (right, high) = points[-2:]
        return high + (high - low) * (nodes - right) / (right - left)

    def _known(self) -> list[tuple[float, float]]:
        """Points of rising nodes and never falling seconds."""
        if self._points is None:
            found = sorted(bucket.point for bucket in self._buckets.values())
            highest = 0.0
            points: list[tuple[float, float]] = []
            for nodes, seconds in found:
                highest = max(highest, seconds)
                if points and nodes <= points[-1][0]:
                    continue
                points.append((nodes, highest))
            self._points = points
        return self._points
