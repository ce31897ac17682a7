"""The cache of the target: committed rows of every lane, and the tree in flight.

Knows lanes, slots and paths; knows no model and no token. It is a transformers `Cache`, so unmodified models use it:
they call `update` once per layer, and everything else (which lanes are written, what is kept) is said by `begin`,
`commit` and `rollback` around the forward.

Lanes are numbers handed out once and never reused; slots are places along the batch axis. Active lanes always occupy
slots ``0 .. len - 1``: when a lane is freed, the last one moves into its slot, so that a forward over all lanes is one
slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .fused_commit import can_fuse, move_paths
from .packing import Packing
from .snapshot import Snapshot
from .tree_layer import TreeLayer


class TreeCache(Cache):
    """Keys and values of all layers.

    Args:
        windows: sliding window of each layer, None for full attention.
        lanes: lanes to allocate for at first; more are added as they are opened.
    """

    def __init__(self, windows: Sequence[int | None], lanes: int = 1) -> None:
        super().__init__(layers=[TreeLayer(window) for window in windows])
        self._lane_in_slot: list[int] = []
        self._length: dict[int, int] = {}
        self._next_lane = 0
        for layer in self.layers:
            layer.slots = max(1, lanes)

    def limit_rows(self, rows: int) -> None:
        """From now on no layer allocates more than ``rows`` rows over all its slots, as far as what is in use allows.

        Slots are all as long as the longest, so lanes in use take ``lanes * longest`` rows: who opens lanes must keep
        that below the limit.
        """
        for layer in self.layers:
            layer.row_limit = rows

    # lanes

    @property
    def lanes(self) -> tuple[int, ...]:
        """Open lanes in slot order."""
        return tuple(self._lane_in_slot)

    def length(self, lane: int) -> int:
        """Committed tokens of ``lane``."""
        return self._length[lane]

    def open(self, expected_rows: int = 0) -> int:
        """Opens an empty lane; ``expected_rows`` sizes the first allocation."""
        self._refuse_in_flight("open a lane")
        lane, self._next_lane = self._next_lane, self._next_lane + 1
        self._lane_in_slot.append(lane)
        self._length[lane] = 0
        slots = len(self._lane_in_slot)
        for layer in self.layers:
            layer.expected_rows = max(layer.expected_rows, expected_rows)
            layer.kept.append(0)
            layer.reserve_slots(slots)
        return lane

    def free(self, lane: int) -> None:
        """Closes ``lane``; the last slot moves into its place."""
        self._refuse_in_flight("free a lane")
        slot, last = self.slot(lane), len(self._lane_in_slot) - 1
        for layer in self.layers:
            if slot != last:
                layer.move_slot(last, slot)
            layer.kept.pop()
        self._lane_in_slot[slot] = self._lane_in_slot[last]
        self._lane_in_slot.pop()
        del self._length[lane]
        if not self._lane_in_slot:
            for layer in self.layers:
                layer.release()

    def clear(self, lane: int) -> None:
        """Forgets the committed rows of ``lane`` but keeps it open."""
        self._refuse_in_flight("clear a lane")
        slot = self.slot(lane)
        self._length[lane] = 0
        for layer in self.layers:
            layer.kept[slot] = 0

    def shorten(self, lane: int, length: int) -> None:
        """Forgets the committed rows of ``lane`` from ``length`` on.

        Where a sliding window has trimmed rows that are wanted again, the lane is cleared instead: look at `length`.

        Raises:
            ValueError: the lane is shorter than that.
        """
        self._refuse_in_flight("shorten a lane")
        slot, dropped = self.slot(lane), self._length[lane] - length
        if not 0 <= length <= self._length[lane]:
            raise ValueError(f"lane {lane} holds {self._length[lane]} tokens; it cannot be shortened to {length}")
        for layer in self.layers:
            needed = length if layer.window is None else min(length, layer.window - 1)
            if layer.kept[slot] - dropped < needed:
                self.clear(lane)
                return
        self._length[lane] = length
        for layer in self.layers:
            layer.kept[slot] -= dropped

    def scrub(self, lane: int) -> None:
        """Makes the stale rows of ``lane`` zeros: for rows that were dropped because they hold NaN.

        Attention hides stale rows with a weight of zero, but zero times NaN is NaN.
        """
        self._refuse_in_flight("scrub a lane")
        for layer in self.layers:
            layer.scrub(self.slot(lane))

    def slot(self, lane: int) -> int:
        """Where ``lane`` lies along the batch axis."""
        try:
            return self._lane_in_slot.index(lane)
        except ValueError:
            raise KeyError(f"lane {lane} is not open; open lanes: {self._lane_in_slot}") from None

    # one forward

    def begin(self, slots: range) -> None:
        """Says which slots the next forward writes, in batch order."""
        self._refuse_in_flight("begin a forward")
        if not 0 <= slots.start < slots.stop <= len(self._lane_in_slot) or slots.step != 1:
            raise ValueError(f"slots must be a run of open slots 0..{len(self._lane_in_slot) - 1}, got {slots}")
        for layer in self.layers:
            layer.writing = slots

    def expect(self, packing: Packing | None) -> None:
        """Says how the nodes of the next forward come: packed, or one batch row per slot."""
        for layer in self.layers:
            layer.packing = packing

    def committed_rows(self, layer_idx: int) -> tuple[int, ...]:
        """Committed rows that a layer holds for each slot being written (fewer than tokens where a window trims)."""
        layer = self.layers[layer_idx]
        return tuple(layer.kept[slot] for slot in layer.writing)

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """Keeps the rows of each lane's path and drops all others in flight.

        Args:
            paths: lane -> increasing node numbers of the forward in flight. A lane that is not named keeps none.

        Raises:
            ValueError: a path is not increasing or names a node outside the forward.
            KeyError: a lane is not open.
            RuntimeError: a lane took no part in the forward. In all three cases nothing is committed for any lane.
        """
        self.commit_by_layer([(range(len(self.layers)), paths)])

    def commit_by_layer(self, groups: Sequence[tuple[range, Mapping[int, Sequence[int]]]]) -> None:
        """`commit` where not all layers have the same rows in flight.

        Args:
            groups: runs of layers, all layers together, each with the rows its layers keep. Every group names the same
                lanes, and keeps as many rows of a lane as the others.

        Raises:
            ValueError, KeyError, RuntimeError: as `commit`; ValueError also when groups keep different numbers of rows.
        """
        for layers, paths in groups:
            self._check_paths(layers, paths)
        kept = [{lane: len(path) for lane, path in paths.items()} for _, paths in groups]
        if any(counts != kept[0] for counts in kept):
            raise ValueError(f"all layers must keep as many rows of a lane, got {kept}")
        for layers, paths in groups:
            by_slot = {self.slot(lane): tuple(path) for lane, path in paths.items()}
            members = self.layers[layers.start : layers.stop]
            (move_paths if can_fuse(members) else move_layer_by_layer)(members, by_slot)
        for lane, count in kept[0].items():
            self._length[lane] += count
            for layer in self.layers:
                layer.count(self.slot(lane), count)
        self.rollback()

    def _check_paths(self, layers: range, paths: Mapping[int, Sequence[int]]) -> None:
        members = self.layers[layers.start : layers.stop]
        width = max((layer.in_flight for layer in members), default=0)
        for lane, path in paths.items():
            slot = self.slot(lane)
            if any(not layer.in_flight or slot not in layer.writing for layer in members):
                raise RuntimeError(f"lane {lane} has no rows in flight")
            if list(path) != sorted(set(path)) or (path and not 0 <= path[0] <= path[-1] < width):
                raise ValueError(
                    f"the path of lane {lane} must be increasing node numbers below {width}, got {list(path)}"
                )

    def take_back(self, layers: range) -> None:
        """Drops the rows in flight of some layers; they may be written again in the same slots."""
        for layer in self.layers[layers.start : layers.stop]:
            layer.in_flight = 0

    def rollback(self) -> None:
        """Drops all rows in flight. Nothing moves: they are simply no longer counted."""
        for layer in self.layers:
            layer.in_flight = 0
            layer.writing = range(0)
            layer.packing = None

    def _refuse_in_flight(self, what: str) -> None:
        if any(layer.in_flight for layer in self.layers):
            raise RuntimeError(f"cannot {what} while a tree is in flight; commit or roll back first")

    # rows that outlive their lane

    def snapshot(self, lane: int) -> Snapshot:
        """A copy of the lane's committed rows."""
        self._refuse_in_flight("copy a lane")
        slot = self.slot(lane)
        return Snapshot(self.length(lane), [layer.copy_rows(slot) for layer in self.layers], self._windows())

    def restore(self, lane: int, snapshot: Snapshot, tokens: int) -> None:
        """Gives an empty lane the first ``tokens`` tokens of a snapshot, bit for bit.

        Raises:
            ValueError: the lane is not empty, or the snapshot does not hold what so many tokens need.
        """
        self._refuse_in_flight("fill a lane")
        snapshot.check_fills(lane, self.length(lane), tokens)
        slot = self.slot(lane)
        for layer, rows in zip(self.layers, snapshot.first(tokens), strict=True):
            layer.write_rows(slot, *rows)
        self._length[lane] = tokens

    def _windows(self) -> list[int | None]:
        return [layer.window for layer in self.layers]

    # looking in

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values in all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def rows(self, lane: int, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Committed keys ``[K, S, D]`` and values ``[K, S, Dv]`` of a lane in one layer (a view)."""
        layer, slot = self.layers[layer_idx], self.slot(lane)
        kept = layer.kept[slot]
        return layer.keys[slot, :, :kept], layer.values[slot, :, :kept]

    def check_integrity(self) -> None:
        """Raises AssertionError when lanes, slots and rows do not fit together."""
        lanes = self._lane_in_slot
        assert len(set(lanes)) == len(lanes), f"a lane has two slots: {lanes}"
        assert set(lanes) == set(self._length), f"slots hold {lanes}, lengths know {sorted(self._length)}"
        for index, layer in enumerate(self.layers):
            assert len(layer.kept) == len(lanes), f"layer {index} counts {len(layer.kept)} slots, {len(lanes)} are open"
            for lane, kept in zip(lanes, layer.kept, strict=True):
                length = self._length[lane]
                if layer.window is None:
                    assert kept == length, f"layer {index} holds {kept} rows of lane {lane}, {length} are committed"
                else:
                    needed, most = min(length, layer.window - 1), layer.window - 1 + layer.slack
                    assert needed <= kept <= min(length, most), (
                        f"layer {index} holds {kept} rows of lane {lane}, its window needs {needed}..{most}"
                    )
                assert kept <= layer.capacity or not layer.is_initialized, f"layer {index} overflows"

    # operations of a plain cache that would break the bookkeeping above

    def crop(self, *args, **kwargs) -> None:
        """Refused: rows leave through `rollback`."""
        raise NotImplementedError("a TreeCache drops rows through rollback(), not crop()")

    def reorder_cache(self, *args, **kwargs) -> None:
        """Refused: branchwise has no beams."""
        raise NotImplementedError("a TreeCache has lanes, not beams: reorder_cache is not supported")


def move_layer_by_layer(layers: Sequence[TreeLayer], paths: Mapping[int, Sequence[int]]) -> None:
    """`move_paths` for any layers: on a CPU, on several devices, before triton is there. All slots move at once."""
    known: dict[tuple[torch.device, int, tuple[int, ...]], list[Tensor]] = {}
    for layer in layers:
        if layer.keys is None:
            continue  # nobody has written yet, so no path has a row
        key = (layer.keys.device, layer.base, tuple(layer.kept))  # the same for most layers
        if key not in known:
            known[key] = [torch.tensor(numbers, device=layer.keys.device) for numbers in layer.moves(paths)]
        slots, sources, targets = known[key]
        if len(slots):
            layer.move(slots, sources, targets)
