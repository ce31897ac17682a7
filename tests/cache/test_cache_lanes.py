"""Lanes opened, freed, cleared, committed and rolled back in any order, against a dict of lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from branchwise.cache import TreeCache

pytestmark = pytest.mark.core

#: full attention, windows of one and two positions, one that trims after a few commits, one that never does here
WINDOWS = (None, 1, 2, 5, 200)
KEY_HEADS, KEY_WIDTH, VALUE_WIDTH = 2, 3, 2


def numbered_rows(numbers: torch.Tensor, width: int) -> torch.Tensor:
    """``[B, N]`` row numbers to states ``[B, K, N, D]`` in which every entry tells row, head and column."""
    heads = torch.arange(KEY_HEADS, dtype=torch.float64)[:, None, None] / 10
    columns = torch.arange(width, dtype=torch.float64) / 100
    return numbers.double()[:, None, :, None] + heads + columns


class LanesAgainstLists(RuleBasedStateMachine):
    """The model is a list of row numbers per lane; every row ever written has a number of its own."""

    @initialize(lanes=st.integers(1, 3))
    def start(self, lanes: int) -> None:
        self.cache = TreeCache(WINDOWS, lanes=lanes)
        self.committed: dict[int, list[int]] = {}
        self.next_row = 1

    @rule(expected_rows=st.integers(0, 40))
    def open(self, expected_rows: int) -> None:
        if len(self.committed) < 5:
            lane = self.cache.open(expected_rows)
            assert lane not in self.committed
            self.committed[lane] = []

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.committed)))
        self.cache.free(lane)
        del self.committed[lane]
        with pytest.raises(KeyError, match=f"lane {lane} is not open"):
            self.cache.slot(lane)

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.committed)))
        self.cache.clear(lane)
        self.committed[lane] = []

    @precondition(lambda self: self.committed)
    @rule(
        data=st.data(),
        widths=st.lists(st.sampled_from([1, 2, 5, 13, 40]), min_size=1, max_size=3),
        end=st.sampled_from(["commit", "commit", "roll back"]),
    )
    def forward(self, data: st.DataObject, widths: list[int], end: str) -> None:
        """More than one width: a tree that grows level by level before it is committed."""
        span = self._begin(data)
        rows: dict[int, list[int]] = {}
        for width in widths:
            for lane, numbers in self._write(span, width, range(len(WINDOWS))).items():
                rows.setdefault(lane, []).extend(numbers)
            self._refuse_everything_in_flight()
        paths = {}
        if end == "commit":
            for lane, numbers in rows.items():
                if data.draw(st.booleans(), label="lane is named"):
                    path = sorted(data.draw(st.sets(st.integers(0, sum(widths) - 1)), label="path"))
                    paths[lane] = path
                    self.committed[lane] += [numbers[node] for node in path]
            self.cache.commit(paths)
        else:
            self.cache.rollback()

    @precondition(lambda self: self.committed)
    @rule(data=st.data(), width=st.integers(1, 20), layers_done=st.integers(0, len(WINDOWS) - 1))
    def interrupted_forward(self, data: st.DataObject, width: int, layers_done: int) -> None:
        """Some layers have written their rows, the others have not."""
        self._write(self._begin(data), width, range(layers_done))
        self.cache.rollback()

    def _begin(self, data: st.DataObject) -> range:
        first = data.draw(st.integers(0, len(self.committed) - 1))
        span = range(first, data.draw(st.integers(first + 1, len(self.committed))))
        self.cache.begin(span)
        return span

    def _write(self, span: range, width: int, layers: range) -> dict[int, list[int]]:
        """Plays the model: one `update` per layer. What comes back is what attention would see."""
        lanes = self.cache.lanes[span.start : span.stop]
        numbers = torch.arange(self.next_row, self.next_row + len(lanes) * width).view(len(lanes), width)
        self.next_row += numbers.numel()
        for index in layers:
            states = numbered_rows(numbers, KEY_WIDTH), -numbered_rows(numbers, VALUE_WIDTH)
            keys, values = self.cache.update(*states, index)
            slots = keys.shape[2] - width
            assert values.shape[2] == keys.shape[2]
            assert torch.equal(keys[:, :, slots:], states[0])
            assert torch.equal(values[:, :, slots:], states[1])
            for row, (lane, kept) in enumerate(zip(lanes, self.cache.committed_rows(index), strict=True)):
                newest = torch.tensor([self.committed[lane][len(self.committed[lane]) - kept :]])
                assert torch.equal(keys[row, :, :kept], numbered_rows(newest, KEY_WIDTH)[0])
                assert torch.equal(values[row, :, :kept], -numbered_rows(newest, VALUE_WIDTH)[0])
        return dict(zip(lanes, numbers.tolist(), strict=True))

    def _refuse_everything_in_flight(self) -> None:
        some_lane = next(iter(self.committed))
        for operation in (
            lambda: self.cache.open(),
            lambda: self.cache.free(some_lane),
            lambda: self.cache.clear(some_lane),
            lambda: self.cache.begin(range(1)),
        ):
            with pytest.raises(RuntimeError, match="in flight"):
                operation()

    @invariant()
    def lanes_hold_their_rows(self) -> None:
        self.cache.check_integrity()
        assert sorted(self.cache.lanes) == sorted(self.committed)
        for lane, numbers in self.committed.items():
            assert self.cache.length(lane) == len(numbers)
            for index, window in enumerate(WINDOWS):
                if not self.cache.layers[index].is_initialized:
                    assert not numbers
                    continue
                keys, values = self.cache.rows(lane, index)
                kept = keys.shape[1]
                assert kept == len(numbers) if window is None else kept >= min(len(numbers), window - 1)
                newest = torch.tensor([numbers[len(numbers) - kept :]])
                assert torch.equal(keys, numbered_rows(newest, KEY_WIDTH)[0])
                assert torch.equal(values, -numbered_rows(newest, VALUE_WIDTH)[0])

    @invariant()
    def no_lanes_no_bytes(self) -> None:
        assert self.committed or self.cache.nbytes == 0


TestLanesAgainstLists = LanesAgainstLists.TestCase
TestLanesAgainstLists.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def three_lanes_of_lengths(*lengths: int) -> tuple[TreeCache, list[int]]:
    """A cache of one full and one sliding layer, its lanes filled to the given lengths in one forward."""
    cache = TreeCache((None, 3))
    lanes = [cache.open() for _ in lengths]
    write(cache, range(len(lengths)), max(lengths))
    cache.commit({lane: range(length) for lane, length in zip(lanes, lengths, strict=True)})
    return cache, lanes


def write(cache: TreeCache, slots: range, width: int) -> None:
    """One forward's updates, rows numbered 100 * slot + node."""
    cache.begin(slots)
    numbers = torch.tensor([[100 * slot + node for node in range(width)] for slot in slots])
    for index in range(len(cache.layers)):
        cache.update(numbered_rows(numbers, KEY_WIDTH), numbered_rows(numbers, VALUE_WIDTH), index)


def kept_numbers(cache: TreeCache, lane: int) -> list[int]:
    return cache.rows(lane, 0)[0][0, :, 0].int().tolist()


@pytest.mark.parametrize(
    "path, why", [((1, 0), "increasing"), ((0, 0), "increasing"), ((0, 4), "below 4"), ((-1, 0), "below 4")]
)
def test_a_path_that_is_no_path_is_refused_and_nothing_is_kept(path, why):
    cache, (first, second) = three_lanes_of_lengths(2, 2)
    write(cache, range(2), 4)
    with pytest.raises(ValueError, match=rf"(?s)lane {second}.*{why}"):
        cache.commit({first: (0, 1), second: path})
    cache.rollback()
    assert (cache.length(first), cache.length(second)) == (2, 2)
    cache.check_integrity()


def test_a_lane_that_is_not_in_the_forward_is_refused_before_any_lane_is_committed():
    cache, (first, second, third) = three_lanes_of_lengths(2, 2, 2)
    write(cache, range(2), 4)
    with pytest.raises(KeyError, match="lane 99 is not open"):
        cache.commit({first: (0, 1), 99: (0,)})
    with pytest.raises(RuntimeError, match=f"lane {third} has no rows in flight"):
        cache.commit({first: (0, 1), third: (0,)})
    # refused as a whole: the rows are still in flight and can be committed once
    cache.commit({first: (0, 1), second: (0,)})
    assert [cache.length(lane) for lane in (first, second, third)] == [4, 3, 2]
    cache.check_integrity()


def test_committing_without_a_forward_is_refused():
    cache, (lane,) = three_lanes_of_lengths(2)
    with pytest.raises((RuntimeError, ValueError), match=f"lane {lane}"):
        cache.commit({lane: (0,)})
    assert cache.length(lane) == 2


@pytest.mark.parametrize("slots", [range(0), range(0, 3), range(-1, 1), range(0, 2, 2), range(1, 1)])
def test_a_forward_over_slots_that_are_not_a_run_of_open_ones_is_refused(slots):
    cache, _ = three_lanes_of_lengths(1, 1)
    with pytest.raises(ValueError, match="run of open slots"):
        cache.begin(slots)


def test_a_forward_of_another_batch_size_is_refused():
    cache, _ = three_lanes_of_lengths(1, 1)
    cache.begin(range(2))
    rows = numbered_rows(torch.ones(3, 1), KEY_WIDTH)
    with pytest.raises(RuntimeError, match="3 rows but the cache expects 2"):
        cache.update(rows, rows, 0)


def test_the_last_slot_moves_into_the_place_of_a_freed_lane():
    cache, (first, second, third) = three_lanes_of_lengths(1, 2, 3)
    cache.free(first)
    assert cache.lanes == (third, second)
    assert kept_numbers(cache, third) == [200, 201, 202]
    assert kept_numbers(cache, second) == [100, 101]
    assert cache.open() not in (first, second, third), "a lane number is never reused"


def test_a_new_lane_in_an_old_slot_sees_nothing_of_its_predecessor():
    cache, (first, _) = three_lanes_of_lengths(5, 1)
    cache.free(first)
    fresh = cache.open()
    write(cache, range(2), 2)
    assert cache.committed_rows(0) == (1, 0)
    cache.commit({fresh: (0, 1)})
    assert kept_numbers(cache, fresh) == [100, 101]


def test_operations_that_would_break_the_bookkeeping_are_refused_by_name():
    cache = TreeCache((None,))
    with pytest.raises(NotImplementedError, match="rollback"):
        cache.crop(-1)
    with pytest.raises(NotImplementedError, match="beams"):
        cache.reorder_cache(torch.tensor([0]))
