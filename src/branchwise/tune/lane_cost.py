"""What every further lane of a step costs, its nodes aside: attention over its own keys, and the host's work for it.

Steps of many nodes are mostly steps of many lanes. Without this the seconds of the lanes would be taken for those of
the nodes, a drafted node would look twice as dear as it is, and trees would stay too small.
"""

from __future__ import annotations

from dataclasses import dataclass

#: steps of a kind over which their mean is taken
MEAN_STEPS = 16
#: sums of squared numbers of lanes: evidence that is kept, and that speaks for lanes being free before there is any
MOST_EVIDENCE, FREE_EVIDENCE = 400.0, 4.0
#: the same for nodes: next to none, so that the equations have a solution before any step differed in nodes
SOME_NODES = 1e-6
#: share of the mean by which a step may differ from it; a hiccup of the machine says nothing about lanes
LARGEST_DIFFERENCE = 0.25


@dataclass
class _Mean:
    """Of the steps of one kind."""

    lanes: float
    nodes: float
    seconds: float
    steps: int = 1


@dataclass
class _Products:
    """Sums of products of differences: in lanes (l), nodes (n) and seconds (s)."""

    ll: float = 0.0
    ln: float = 0.0
    nn: float = 0.0
    ls: float = 0.0
    ns: float = 0.0

    def add(self, lanes: float, nodes: float, seconds: float) -> None:
        """Adds one step's; older ones fade once there is `MOST_EVIDENCE`."""
        self.ll += lanes * lanes
        self.ln += lanes * nodes
        self.nn += nodes * nodes
        self.ls += lanes * seconds
        self.ns += nodes * seconds
        if self.ll > MOST_EVIDENCE:
            fade = MOST_EVIDENCE / self.ll
            self.ll, self.ln, self.nn = fade * self.ll, fade * self.ln, fade * self.nn
            self.ls, self.ns = fade * self.ls, fade * self.ns

    @property
    def seconds_per_lane(self) -> float:
        """The first of the two unknowns of the normal equations."""
        ll, nn = self.ll + FREE_EVIDENCE, self.nn + SOME_NODES
        return (self.ls * nn - self.ns * self.ln) / (ll * nn - self.ln * self.ln)


class LaneCost:
    """Seconds per lane, by least squares over how steps differ from the mean of their kind.

    Nodes are a second cause beside lanes, so that what they cost is not booked as the lanes': where both always differ
    together (plain decoding), lanes are taken to be free.
    """

    def __init__(self) -> None:
        self._means: dict[int, _Mean] = {}
        self._products = _Products()
        self._each = 0.0

    def learn(self, kind: int, lanes: int, nodes: int, seconds: float) -> None:
        """Books a step.

        Args:
            kind: the same for steps of about as many nodes.
            lanes: that took part.
            nodes: of all trees.
            seconds: it took.
        """
        mean = self._means.get(kind)
        if mean is None:
            self._means[kind] = _Mean(lanes, nodes, seconds)
            return
        more_lanes, more_nodes, most = lanes - mean.lanes, nodes - mean.nodes, LARGEST_DIFFERENCE * mean.seconds
        more_seconds = min(max(seconds - mean.seconds, -most), most)
        self._products.add(more_lanes, more_nodes, more_seconds)
        mean.steps = min(mean.steps + 1, MEAN_STEPS)
        mean.lanes += more_lanes / mean.steps
        mean.nodes += more_nodes / mean.steps
        mean.seconds += more_seconds / mean.steps
        self._each = max(0.0, self._products.seconds_per_lane)

    def seconds(self, lanes: int) -> float:
        """What so many lanes take more than one."""
        return self._each * max(0, lanes - 1)
