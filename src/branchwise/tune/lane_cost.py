"""What every further lane of a step costs, its nodes aside: attention over its own keys, and the host's work for it.

Steps of many nodes are mostly steps of many lanes. Without this the seconds of the lanes would be taken for those of
the nodes, a drafted node would look twice as dear as it is, and trees would stay too small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: steps of a kind over which their mean is taken
MEAN_STEPS = 16
#: sums of squared numbers of lanes: evidence that is kept, and that speaks for lanes being free before there is any
MOST_EVIDENCE, FREE_EVIDENCE = 400.0, 4.0
#: share of the mean by which a step may differ from it; a hiccup of the machine says nothing about lanes
LARGEST_DIFFERENCE = 0.25


@dataclass
class _Mean:
    """Of the steps of one kind: lanes, nodes and seconds."""

    values: np.ndarray
    steps: int = 1

    def add(self, difference: np.ndarray) -> None:
        self.steps = min(self.steps + 1, MEAN_STEPS)
        self.values += difference / self.steps


class LaneCost:
    """Seconds per lane, by least squares over how steps differ from the mean of their kind.

    Nodes are a second cause beside lanes, so that what they cost is not booked as the lanes': where both always differ
    together (plain decoding), lanes are taken to be free.
    """

    def __init__(self) -> None:
        self._means: dict[int, _Mean] = {}
        self._sums = np.zeros((3, 3))  # products of differences in lanes, nodes and seconds
        self._each = 0.0

    def learn(self, kind: int, lanes: int, nodes: int, seconds: float) -> None:
        """Books a step.

        Args:
            kind: the same for steps of about as many nodes.
            lanes: that took part.
            nodes: of all trees.
            seconds: it took.
        """
        step = np.array([lanes, nodes, seconds], np.float64)
        mean = self._means.get(kind)
        if mean is None:
            self._means[kind] = _Mean(step)
            return
        difference = step - mean.values
        most = LARGEST_DIFFERENCE * mean.values[2]
        difference[2] = min(max(difference[2], -most), most)
        self._sums += np.outer(difference, difference)
        self._sums *= MOST_EVIDENCE / max(MOST_EVIDENCE, self._sums[0, 0])
        mean.add(difference)
        causes = self._sums[:2, :2] + np.diag((FREE_EVIDENCE, 1e-6))
        self._each = max(0.0, float(np.linalg.solve(causes, self._sums[:2, 2])[0]))

    def seconds(self, lanes: int) -> float:
        """What so many lanes take more than one."""
        return self._each * max(0, lanes - 1)
