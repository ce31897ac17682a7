"""Running a head in C for several lanes at once: its keys and values in pages, and where every lane is.

The counterpart of head_lanes.py, with the same rows in the same order and the same two ways of running them. A call is
one forward and gives the candidates of its rows; the hidden states that the next level continues stay with the head.
Knows rows, levels and which hidden state a node continues. Does not know which tokens are drafted, nor why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from ..cache import PagedCache
from .eagle_head import EagleHead
from .head_lanes import Candidates, CommittedRows
from .native_head import NativeHead

#: rows of a block of the cache: as many keys as attention takes at once
_PAGE_ROWS = 256


@dataclass
class _Flight:
    """A lane's tree in flight.

    Attributes:
        states: row of the head's hidden states that the first node of its latest level has, or its root.
        first: number of that node among those in flight; -1 for the root, which is not.
        depth: of the next level's nodes, from 0.
        parents: of every node in flight, by number; -1 for the root.
    """

    states: int
    first: int = -1
    depth: int = 0
    parents: list[int] = field(default_factory=list)

    def above(self, parents: Sequence[int]) -> list[int]:
        """Numbers of the nodes that the next level hangs from."""
        return [-1] * len(parents) if self.first < 0 else [self.first + parent for parent in parents]


class NativeLanes:
    """A head in C and its cache.

    Args:
        head: the head.
        weights: see `NativeHead`.

    Raises:
        NativeUnavailable: the head cannot be run so.
    """

    engine = "native"

    def __init__(self, head: EagleHead, weights: str | None = None) -> None:
        self.head = head
        self.native = NativeHead(head, page_rows=_PAGE_ROWS, weights=weights)
        config = head.config
        self.cache = PagedCache(config.layers, config.kv_heads, config.head_dim, self.native.dtype, _PAGE_ROWS)
        self._flights: dict[int, _Flight] = {}

    def open(self, expected_rows: int) -> int:
        """Takes a lane; see `PagedCache.open`."""
        return self.cache.open(expected_rows)

    def free(self, lane: int) -> None:
        """Gives the lane back, in whatever state a failure left it."""
        self.rollback()
        self.cache.free(lane)

    def rollback(self) -> None:
        """Forgets all drafted nodes."""
        self.cache.rollback()
        self._flights = {}

    def read(self, rows: Mapping[int, CommittedRows], wanted: int = 0) -> dict[int, list[Candidates]]:
        """Adds committed rows, in one forward for all lanes; see `HeadLanes.read`."""
        counts = {lane: len(given.tokens) for lane, given in rows.items()}
        starts = {lane: self.cache.length(lane) for lane in rows}
        self.cache.begin(counts)
        begins = list(accumulate(counts.values(), initial=0))
        parts = [given.features for given in rows.values()]
        found = self.native.run(
            {
                "tokens": [token for given in rows.values() for token in given.tokens],
                "positions": [at for lane, start in starts.items() for at in range(start, start + counts[lane])],
                "begins": begins,
                "wanted": [end - 1 for end in begins[1:]] if wanted else [],
                **self._places(rows),
            },
            self.cache.pool,
            torch.cat(parts) if len(parts) > 1 else parts[0],
            wanted,
        )
        self.cache.commit({lane: range(count) for lane, count in counts.items()})
        self._flights = {lane: _Flight(row) for row, lane in enumerate(rows)}
        return {lane: [row] for lane, row in zip(rows, found, strict=True)} if wanted else {}

    def extend(self, nodes: Mapping[int, Sequence[tuple[int, int]]], wanted: int) -> dict[int, list[Candidates]]:
        """Runs the next level of every named lane's tree, in one forward; see `HeadLanes.extend`."""
        flights = {lane: self._flights[lane] for lane in nodes}
        counts = {lane: len(level) for lane, level in nodes.items()}
        parents = {lane: [parent for _, parent in level] for lane, level in nodes.items()}
        if any(flight.parents for flight in flights.values()):
            self.cache.extend(counts)
        else:
            self.cache.begin(counts)
        begins = list(accumulate(counts.values(), initial=0))
        # the hidden states are laid anew by the call, and where each level lies among them is noted after it
        continued = [flights[lane].states + parent for lane, level in parents.items() for parent in level]
        positions = [self.cache.length(lane) + flights[lane].depth for lane in nodes for _ in range(counts[lane])]
        for first, lane in zip(begins[:-1], nodes, strict=True):
            flight = flights[lane]
            hung = flight.above(parents[lane])
            flight.states, flight.first = first, len(flight.parents)
            flight.depth += 1
            flight.parents += hung
        trees = [flight.parents for flight in flights.values()]
        found = self.native.run(
            {
                "tokens": [token for level in nodes.values() for token, _ in level],
                "positions": positions,
                "continued": continued,
                "begins": begins,
                "flights": list(accumulate(map(len, trees), initial=0)),
                "parents": [parent for tree in trees for parent in tree],
                "wanted": range(begins[-1]),
                **self._places(nodes),
            },
            self.cache.pool,
            wanted=wanted,
        )
        return {lane: found[begins[row] : begins[row + 1]] for row, lane in enumerate(nodes)}

    def _places(self, lanes: Mapping[int, object]) -> dict[str, Sequence[int]]:
        """Where the rows of the lanes lie."""
        blocks = [self.cache.blocks(lane) for lane in lanes]
        return {
            "committed": [self.cache.length(lane) for lane in lanes],
            "pages": [block for row in blocks for block in row],
            "page_begins": list(accumulate(map(len, blocks), initial=0)),
        }
