"""Keys and values in blocks of rows, for engines that read and write the cache themselves.

One tensor holds the rows of all layers and lanes, so that a commit moves them all at once:

    pool  [2 L, blocks, K, R, D]      keys of layer i at 2 i, its values at 2 i + 1; R rows per block

Values may lie turned, ``[K, D, R]`` in a block, for engines that sum over rows faster that way.

A lane is a list of blocks; its row r lies in block ``r // R`` of the list, at ``r % R``:

    row    0 ........ length        length + N      len(blocks) * R
           | committed | tree in flight | free (stale)  |

Nodes of a tree lie behind the committed rows of their own lane, without padding. Nothing is trimmed: a sliding window
is a matter of what attention looks at. Knows lanes, rows and paths; knows no model, no token and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .large_pages import large_zeros
from .snapshot import Snapshot

#: rows of a block, if not said otherwise: what OpenVINO's paged attention works with on a CPU
BLOCK_ROWS = 32
GROWTH = 1.5
#: a block, and a row in it
Place = tuple[int, int]


class PagedCache:
    """Rows of all lanes.

    Args:
        layers: decoder layers L.
        heads: key/value heads K.
        width: numbers per row and head D, the same for keys and values.
        dtype: of the rows.
        block_rows: rows of a block R.
        turned_values: whether planes of values are ``[blocks, K, D, R]``.

    Attributes:
        block_rows: as given.
        pool: all rows; another tensor after every growth, see `growths`.
        growths: rises when `pool` is another tensor.
        mover: for an engine that moves rows faster than torch; is given the pool, places, and where their rows go. One
            after another they can be moved without loss.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        width: int,
        dtype: torch.dtype,
        block_rows: int = BLOCK_ROWS,
        turned_values: bool = False,
    ) -> None:
        self.block_rows = block_rows
        self._turned_values = turned_values
        self.growths = -1
        self.mover: Callable[[Tensor, Sequence[Place], Sequence[Place]], None] | None = None
        # a block is there from the start, so that whoever holds the pool never holds an empty tensor
        self._replace(large_zeros(2 * layers, 1, heads, block_rows, width, dtype=dtype))
        self._free = [0]
        self._blocks: dict[int, list[int]] = {}
        self._length: dict[int, int] = {}
        self._flight: dict[int, int] = {}  # rows in flight by lane
        self._next_lane = 0
        self._row_limit: int | None = None

    # lanes

    @property
    def lanes(self) -> tuple[int, ...]:
        """Open lanes, oldest first."""
        return tuple(self._length)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.pool.numel() * self.pool.element_size()

    def length(self, lane: int) -> int:
        """Committed tokens of ``lane``."""
        self._check_open(lane)
        return self._length[lane]

    def blocks(self, lane: int) -> list[int]:
        """The blocks of a lane in row order; they hold its committed rows and those in flight."""
        self._check_open(lane)
        return self._blocks[lane]

    def open(self, expected_rows: int = 0) -> int:
        """Opens an empty lane; ``expected_rows`` makes room for so many, as far as `limit_rows` lets it."""
        self._refuse_in_flight("open a lane")
        lane, self._next_lane = self._next_lane, self._next_lane + 1
        self._length[lane], self._blocks[lane] = 0, []
        wanted = self._blocks_for(expected_rows) - len(self._free)
        if wanted > 0:
            blocks = self.pool.shape[1]
            # beside other lanes by a share of what there is: otherwise every new lane would copy all those before it
            spare = math.ceil(GROWTH * blocks) if len(self._length) > 1 else 0
            self._grow(max(blocks + wanted, spare), needed=0)
        return lane

    def free(self, lane: int) -> None:
        """Closes ``lane``; its blocks serve others. The last lane gives the memory back."""
        self._refuse_in_flight("free a lane")
        self._check_open(lane)
        self._free.extend(self._blocks.pop(lane))
        del self._length[lane]
        if not self._length and self.pool.shape[1] > 1:
            self._replace(self._zeros(1))
            self._free = [0]

    def clear(self, lane: int) -> None:
        """Forgets the committed rows of ``lane`` but keeps it open."""
        self.shorten(lane, 0)

    def shorten(self, lane: int, length: int) -> None:
        """Forgets the committed rows of ``lane`` from ``length`` on.

        Raises:
            ValueError: the lane is shorter than that.
        """
        self._refuse_in_flight("shorten a lane")
        if not 0 <= length <= self.length(lane):
            raise ValueError(f"lane {lane} holds {self._length[lane]} tokens; it cannot be shortened to {length}")
        self._length[lane] = length
        self._return_spare(lane)

    def scrub(self, lane: int) -> None:
        """Makes the stale rows of ``lane`` zeros: for rows that were dropped because they hold NaN.

        Attention hides stale rows with a weight of zero, but zero times NaN is NaN.
        """
        self._refuse_in_flight("scrub a lane")
        blocks, at = self.blocks(lane), self._length[lane] % self.block_rows
        if at:
            for planes in self._planes:
                planes[:, blocks[-1], :, at:] = 0
        self.pool[:, self._free] = 0

    def limit_rows(self, rows: int) -> None:
        """From now on no more is allocated than ``rows`` rows over all lanes, as far as what is in use allows."""
        self._row_limit = rows

    # one forward

    def begin(self, nodes: Mapping[int, int]) -> None:
        """Makes room for the next forward: so many nodes behind the committed rows of each lane named."""
        self._refuse_in_flight("begin a forward")
        for lane, count in nodes.items():
            if count < 1:
                raise ValueError(f"lane {lane} must bring at least one node, got {count}")
            self._reserve(lane, self.length(lane) + count)
        self._flight = dict(nodes)

    def extend(self, nodes: Mapping[int, int]) -> None:
        """Makes room for so many more nodes of each lane named, behind those in flight.

        Raises:
            RuntimeError: a lane has nothing in flight.
        """
        for lane, count in nodes.items():
            if lane not in self._flight:
                raise RuntimeError(f"lane {lane} has no rows in flight")
            if count < 1:
                raise ValueError(f"lane {lane} must bring at least one node, got {count}")
        for lane, count in nodes.items():
            self._reserve(lane, self.length(lane) + self._flight[lane] + count)
        for lane, count in nodes.items():
            self._flight[lane] += count

    def drop_newest(self, lane: int) -> None:
        """Drops the newest row in flight of a lane that has more than one."""
        assert self._flight[lane] > 1, "a lane in flight keeps a row"
        self._flight[lane] -= 1
        self._return_spare(lane)

    def write(self, planes: Sequence[int], nodes: Mapping[int, int], rows: Tensor) -> None:
        """Puts the newest rows in flight in their places, for an engine that has not done so itself.

        Args:
            planes: which of the ``2 L`` planes of the pool.
            nodes: so many of each lane.
            rows: ``[planes, T, K, D]``, the nodes of the lanes one after another.
        """
        places = [
            row
            for lane, count in nodes.items()
            for row in self._places(lane, self._length[lane] + self._flight[lane] - count, count)
        ]
        block, at = torch.tensor(places).unbind(1)  # [T] each
        # one plane at a time: indexing three axes at once would copy all rows transposed
        for plane, new in zip(planes, rows, strict=True):
            self._plane(plane)[block, :, at] = new.to(self.pool.dtype)

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """Keeps the rows of each lane's path, in place, and drops all others in flight.

        Args:
            paths: lane -> increasing node numbers of the forward in flight. A lane that is not named keeps none.

        Raises:
            ValueError: a path is not increasing or names a node outside the forward.
            KeyError: a lane is not open.
            RuntimeError: a lane took no part in the forward. In all three cases nothing is committed for any lane.
        """
        for lane, path in paths.items():
            self._check_path(lane, path)
        sources: list[Place] = []
        targets: list[Place] = []
        for lane, path in paths.items():
            moved = [(node, step) for step, node in enumerate(path) if node != step]
            first = self._length[lane]
            sources += [self._place(lane, first + node) for node, _ in moved]
            targets += [self._place(lane, first + step) for _, step in moved]
        if sources and self.mover is not None:
            self.mover(self.pool, sources, targets)
        elif sources:
            from_block, from_row = torch.tensor(sources).unbind(1)
            to_block, to_row = torch.tensor(targets).unbind(1)
            for planes in self._planes:
                # the right side is a copy, so that ranges may overlap
                planes[:, to_block, :, to_row] = planes[:, from_block, :, from_row]
        for lane, path in paths.items():
            self._length[lane] += len(path)
        self.rollback()

    def rollback(self) -> None:
        """Drops all rows in flight. Nothing moves; blocks that hold nothing any more are free for others."""
        lanes, self._flight = list(self._flight), {}
        for lane in lanes:
            self._return_spare(lane)

    # rows that outlive their lane

    def snapshot(self, lane: int) -> Snapshot:
        """A copy of the lane's committed rows."""
        self._refuse_in_flight("copy a lane")
        layers = self.pool.shape[0] // 2
        rows = [self.rows(lane, layer) for layer in range(layers)]
        return Snapshot(self.length(lane), rows, [None] * layers)

    def restore(self, lane: int, snapshot: Snapshot, tokens: int) -> None:
        """Gives an empty lane the first ``tokens`` tokens of a snapshot, bit for bit.

        Raises:
            ValueError: the lane is not empty, or the snapshot does not hold what so many tokens need.
        """
        self._refuse_in_flight("fill a lane")
        snapshot.check_fills(lane, self.length(lane), tokens)
        self._reserve(lane, tokens)
        block, at = torch.tensor(self._places(lane, 0, tokens)).unbind(1)
        for layer, pair in enumerate(snapshot.first(tokens)):
            for plane, rows in enumerate(pair, start=2 * layer):
                self._plane(plane)[block, :, at] = rows.transpose(0, 1)
        self._length[lane] = tokens

    # looking in

    def rows(self, lane: int, layer: int) -> tuple[Tensor, Tensor]:
        """Copies of the committed keys and values of a lane in one layer, ``[K, S, D]`` each."""
        blocks, length = self.blocks(lane), self._length[lane]
        pair = (self._plane(plane)[blocks] for plane in (2 * layer, 2 * layer + 1))  # [blocks, K, R, D] each
        keys, values = (rows.transpose(0, 1).flatten(1, 2)[:, :length] for rows in pair)  # [K, S, D] each
        return keys.contiguous(), values.contiguous()

    def check_integrity(self) -> None:
        """Raises AssertionError when blocks, lanes and rows do not fit together."""
        held = [block for blocks in self._blocks.values() for block in blocks]
        everywhere = sorted([*held, *self._free])
        assert everywhere == list(range(self.pool.shape[1])), f"a block is lost or held twice: {everywhere}"
        for lane, blocks in self._blocks.items():
            rows = self._length[lane] + self._flight.get(lane, 0)
            assert len(blocks) == self._blocks_for(rows), f"lane {lane} holds {len(blocks)} blocks for {rows} rows"

    # blocks

    def _place(self, lane: int, row: int) -> Place:
        return self._blocks[lane][row // self.block_rows], row % self.block_rows

    def _places(self, lane: int, first: int, count: int) -> list[Place]:
        return [self._place(lane, row) for row in range(first, first + count)]

    def _reserve(self, lane: int, rows: int) -> None:
        missing = self._blocks_for(rows) - len(self._blocks[lane])
        if missing > len(self._free):
            used = self.pool.shape[1] - len(self._free)
            self._grow(math.ceil(GROWTH * (used + missing)), needed=used + missing)
        self._blocks[lane].extend(self._free.pop() for _ in range(missing))

    def _return_spare(self, lane: int) -> None:
        keep = self._blocks_for(self._length[lane] + self._flight.get(lane, 0))
        self._free.extend(self._blocks[lane][keep:])
        del self._blocks[lane][keep:]

    def _grow(self, blocks: int, needed: int) -> None:
        """Makes the pool ``blocks`` large, or as large as the limit allows, but at least ``needed``."""
        old = self.pool.shape[1]
        if self._row_limit is not None:
            blocks = min(blocks, self._blocks_for(self._row_limit))
        blocks = max(blocks, needed)
        if blocks <= old:
            return
        pool = self._zeros(blocks)
        pool[:, :old] = self.pool
        self._replace(pool)
        self._free.extend(range(old, blocks))

    def _zeros(self, blocks: int) -> Tensor:
        planes, _, *rest = self.pool.shape
        return large_zeros(planes, blocks, *rest, dtype=self.pool.dtype)

    def _replace(self, pool: Tensor) -> None:
        self.pool = pool
        self.growths += 1
        planes, blocks, heads, rows, width = pool.shape
        values = pool.view(planes, blocks, heads, width, rows).transpose(3, 4) if self._turned_values else pool
        self._planes = pool[0::2], values[1::2]  # all keys, all values: [L, blocks, K, R, D]

    def _plane(self, number: int) -> Tensor:
        """``[blocks, K, R, D]``, whatever way it lies."""
        return self._planes[number % 2][number // 2]

    def _blocks_for(self, rows: int) -> int:
        return -(-rows // self.block_rows)

    # checks

    def _check_open(self, lane: int) -> None:
        if lane not in self._length:
            raise KeyError(f"lane {lane} is not open; open lanes: {list(self._length)}")

    def _check_path(self, lane: int, path: Sequence[int]) -> None:
        self._check_open(lane)
        if lane not in self._flight:
            raise RuntimeError(f"lane {lane} has no rows in flight")
        width = self._flight[lane]
        if list(path) != sorted(set(path)) or (path and not 0 <= path[0] <= path[-1] < width):
            raise ValueError(f"the path of lane {lane} must be increasing node numbers below {width}, got {list(path)}")

    def _refuse_in_flight(self, what: str) -> None:
        if self._flight:
            raise RuntimeError(f"cannot {what} while a tree is in flight; commit or roll back first")
