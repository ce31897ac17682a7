"""One decoder layer's keys and values: preallocated rows, lanes as the batch axis.

Knows rows and slots; knows no token, no tree and no model. A slot's rows lie like this, S being the longest of the
slots in the current forward (tree rows of all slots start at one place, so that one slice holds them):

    row    0 ........ kept[slot]        S ............ S + N      capacity
           | committed | (stale, unseen) | tree in flight | free  |

Stale rows are finite (buffers start as zeros), so a masked weight of 0 never meets a NaN. Where rows may hold NaN,
whoever drops them says so (`scrub`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from .packing import Packing

GROWTH = 1.25


def _grow(allocated: int, needed: int) -> int:
    """What to allocate along one axis: a jump is met exactly, small steps are taken a quarter at a time."""
    return allocated if needed <= allocated else max(needed, math.ceil(allocated * GROWTH))


class TreeLayer(CacheLayerMixin):
    """Keys ``[slots, K, capacity, D]`` and values ``[slots, K, capacity, Dv]`` of one layer.

    Args:
        window: the layer's sliding window in positions, or None. A query at position p sees p - window + 1 .. p, so
            ``window - 1`` committed rows are enough; a slack above that keeps the trimming copy rare.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.kept: list[int] = []
        self.expected_rows = 0
        self.slots = 1  # allocated along the batch axis
        self.row_limit: int | None = None  # most rows to allocate over all slots
        self.writing = range(0)
        self.packing: Packing | None = None  # how the forward in flight brings the nodes of several lanes in one row
        self.base = 0  # first tree row of the forward in flight
        self.in_flight = 0

    @property
    def slack(self) -> int:
        """Committed rows a sliding layer may hold beyond what its window needs."""
        assert self.window is not None
        return max(64, self.window // 4)

    @property
    def capacity(self) -> int:
        """Rows allocated per slot."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values) if t is not None)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates the buffers: heads, widths, dtype and device are those of the first update."""
        needed = self.base + key_states.shape[2]
        rows = max(needed, self.expected_rows)
        if self.window is not None:
            rows = max(needed, min(rows, self.window - 1 + self.slack + key_states.shape[2]))
        if self.row_limit is not None and rows * self.slots > self.row_limit:
            self.slots = max(1, len(self.kept))
            rows = max(needed, min(rows, self.row_limit // self.slots))
        self.keys = self._zeros(key_states, self.slots, rows)
        self.values = self._zeros(value_states, self.slots, rows)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Writes N rows after the committed ones of the slots being written; returns all rows up to them.

        ``key_states`` is ``[B, K, N, D]``, one row of the batch per slot in `writing`, ``value_states`` is
        ``[B, K, N, Dv]``; or both are packed, ``[1, K, T, D]``, as `packing` says. Whatever else a model passes is for
        other caches.

        Returns:
            keys ``[B, K, S + N, D]`` and values ``[B, K, S + N, Dv]``, views into the buffers.
        """
        if self.packing is not None:
            key_states, value_states = self.packing.spread(key_states), self.packing.spread(value_states)
        batch, _, width, _ = key_states.shape
        if batch != len(self.writing):
            raise RuntimeError(f"the forward has {batch} rows but the cache expects {len(self.writing)}")
        first, last = self.writing.start, self.writing.stop
        if not self.in_flight:
            self.base = max(self.kept[slot] for slot in self.writing)
        # a second forward before the commit grows the tree: its rows follow those in flight
        start = self.base + self.in_flight
        end = start + width
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._reserve(end, self.slots)
        assert self.keys is not None and self.values is not None
        self.in_flight += width
        self.keys[first:last, :, start:end] = key_states
        self.values[first:last, :, start:end] = value_states
        return self.keys[first:last, :, :end], self.values[first:last, :, :end]

    def moves(self, paths: Mapping[int, Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
        """Rows that a commit has to move: slots, and for each the row and its place. Others lie where they belong.

        Args:
            paths: slot -> increasing node numbers of the forward in flight.
        """
        moves = [
            (slot, self.base + node, self.kept[slot] + step)
            for slot, path in paths.items()
            for step, node in enumerate(path)
            if self.base + node != self.kept[slot] + step
        ]
        return [slot for slot, _, _ in moves], [source for _, source, _ in moves], [target for _, _, target in moves]

    def move(self, slots: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Moves rows of all slots at once: `moves` as tensors on the layer's device."""
        for buffer in (self.keys, self.values):
            assert buffer is not None
            rows = buffer.transpose(1, 2)  # [slots, capacity, K, D]
            # every row is read before one is written: a source may be another's target
            rows.index_put_((slots, targets), rows[slots, sources])

    def count(self, slot: int, rows: int) -> None:
        """Counts ``rows`` more as committed; they lie in their places. Trims a slot that holds too many."""
        self.kept[slot] += rows
        if self.window is not None and self.kept[slot] > self.window - 1 + self.slack:
            self._trim(slot)

    def _trim(self, slot: int) -> None:
        assert self.window is not None
        needed = self.window - 1
        start = self.kept[slot] - needed
        for buffer in (self.keys, self.values):
            assert buffer is not None
            # the two ranges may overlap, hence the clone
            buffer[slot, :, :needed] = buffer[slot, :, start : start + needed].clone()
        self.kept[slot] = needed

    def move_slot(self, source: int, target: int) -> None:
        """Copies the committed rows of one slot over another's."""
        rows = self.kept[source]
        self.kept[target] = rows
        if self.is_initialized:
            for buffer in (self.keys, self.values):
                assert buffer is not None
                buffer[target, :, :rows] = buffer[source, :, :rows]

    def copy_rows(self, slot: int) -> tuple[Tensor, Tensor]:
        """A copy of a slot's rows: keys ``[K, S, D]`` and values ``[K, S, Dv]``."""
        assert self.keys is not None and self.values is not None
        kept = self.kept[slot]
        return self.keys[slot, :, :kept].clone(), self.values[slot, :, :kept].clone()

    def write_rows(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """Makes ``keys [K, S, D]`` and ``values [K, S, Dv]`` the slot's committed rows."""
        if not self.is_initialized:
            self.base = 0
            self.lazy_initialization(keys[None], values[None])
        self._reserve(keys.shape[1], self.slots)
        assert self.keys is not None and self.values is not None
        self.keys[slot, :, : keys.shape[1]] = keys
        self.values[slot, :, : values.shape[1]] = values
        self.kept[slot] = keys.shape[1]

    def scrub(self, slot: int) -> None:
        """Makes a slot's stale rows zeros."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer[slot, :, self.kept[slot] :] = 0

    def release(self) -> None:
        """Gives the buffers back; the next update allocates anew, for the lanes that are open by then."""
        # transformers annotates these as optional in the base class, which mypy does not follow here
        self.keys = self.values = None  # type: ignore[assignment]
        self.is_initialized = False
        self.expected_rows = 0
        self.slots = 1

    def reserve_slots(self, slots: int) -> None:
        """Makes room for ``slots`` along the batch axis."""
        self.slots = max(self.slots, slots)
        if self.is_initialized:
            self._reserve(max(self.kept, default=0), slots)

    def _reserve(self, rows: int, slots: int) -> None:
        assert self.keys is not None and self.values is not None
        allocated = self.keys.shape[0]
        if rows <= self.capacity and slots <= allocated:
            return
        needed = max(rows, *self.kept)
        rows, slots = _grow(self.capacity, rows), _grow(allocated, slots)
        if self.row_limit is not None and rows * slots > self.row_limit:
            # no room to spare: what long or many lanes left behind on the other axis goes first
            self.slots = slots = len(self.kept)
            rows = max(needed, min(rows, self.row_limit // slots))
        # keys first, then values: at most one old buffer is alive beside its successor
        self.keys = self._grown(self.keys, slots, rows)
        self.values = self._grown(self.values, slots, rows)

    def _grown(self, old: Tensor, slots: int, rows: int) -> Tensor:
        new = self._zeros(old, slots, rows)
        used = max(self.kept, default=0)
        if self.in_flight:
            used = max(used, self.base + self.in_flight)
        common = min(len(old), slots)
        new[:common, :, :used] = old[:common, :, :used]
        return new

    @staticmethod
    def _zeros(like: Tensor, slots: int, rows: int) -> Tensor:
        return torch.zeros((slots, like.shape[1], rows, like.shape[3]), dtype=like.dtype, device=like.device)

    # what transformers' mask helpers ask of a layer

    def get_seq_length(self) -> int:
        """Rows before those that the next update writes: committed ones of the longest slot, then those in flight."""
        return max((self.kept[slot] for slot in self.writing), default=0) + self.in_flight

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that attention sees and the index of the first."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """No bound of its own."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Name of `get_max_length` in transformers before 5.20."""
        return -1
