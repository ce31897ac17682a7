"""Lanes opened, freed, committed and rolled back in any order in a paged cache, against a dict of lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from branchwise.cache import PagedCache, Snapshot
from branchwise.cache.paged_cache import BLOCK_ROWS, GROWTH

pytestmark = pytest.mark.core

LAYERS, HEADS, WIDTH = 2, 3, 4


def numbered(numbers: list[int]) -> torch.Tensor:
    """``[2 L, T, K, D]``: every entry tells row, plane, head and column."""
    planes = torch.arange(2 * LAYERS, dtype=torch.float64)[:, None, None, None] / 10
    heads = torch.arange(HEADS, dtype=torch.float64)[:, None] / 100
    columns = torch.arange(WIDTH, dtype=torch.float64) / 1000
    return torch.tensor(numbers, dtype=torch.float64)[:, None, None] + planes + heads + columns


def assert_holds(cache: PagedCache, lane: int, numbers: list[int]) -> None:
    assert cache.length(lane) == len(numbers)
    expected = numbered(numbers).transpose(1, 2)  # [2 L, K, S, D]
    for layer in range(LAYERS):
        for plane, rows in enumerate(cache.rows(lane, layer), start=2 * layer):
            torch.testing.assert_close(rows, expected[plane], rtol=0, atol=0)


class LanesAgainstLists(RuleBasedStateMachine):
    """The model is a list of row numbers per lane; every row ever written has a number of its own."""

    @initialize(limit=st.none() | st.integers(1, 200), turned_values=st.booleans())
    def start(self, limit: int | None, turned_values: bool) -> None:
        self.cache = PagedCache(LAYERS, HEADS, WIDTH, torch.float64, turned_values=turned_values)
        self.limit = limit
        if limit is not None:
            self.cache.limit_rows(limit)
        self.committed: dict[int, list[int]] = {}
        self.next_row = 1

    @rule(expected_rows=st.integers(0, 150))
    def open(self, expected_rows: int) -> None:
        if len(self.committed) < 4:
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
            self.cache.length(lane)

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def shorten(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.committed)))
        length = data.draw(st.integers(0, len(self.committed[lane])))
        self.cache.shorten(lane, length)
        del self.committed[lane][length:]

    @precondition(lambda self: self.committed)
    @rule(data=st.data(), commits=st.booleans())
    def step(self, data: st.DataObject, commits: bool) -> None:
        lanes = data.draw(st.lists(st.sampled_from(sorted(self.committed)), unique=True, min_size=1))
        nodes = {lane: data.draw(st.integers(1, 2 * BLOCK_ROWS + 3)) for lane in lanes}
        self.cache.begin(nodes)
        fresh: dict[int, list[int]] = {lane: [] for lane in lanes}
        self.write(nodes, fresh)
        for _ in range(data.draw(st.integers(0, 2))):  # a drafter's levels
            grown = data.draw(st.lists(st.sampled_from(lanes), unique=True, min_size=1))
            more = {lane: data.draw(st.integers(1, BLOCK_ROWS)) for lane in grown}
            self.cache.extend(more)
            self.write(more, fresh)
        for lane in data.draw(st.lists(st.sampled_from(lanes), unique=True)):
            if len(fresh[lane]) > 1:
                self.cache.drop_newest(lane)
                fresh[lane].pop()
        self.cache.check_integrity()
        if not commits:
            self.cache.rollback()
            return
        paths = {
            lane: sorted(data.draw(st.sets(st.integers(0, len(fresh[lane]) - 1))))
            for lane in lanes
            if data.draw(st.booleans())
        }
        self.cache.commit(paths)
        for lane, path in paths.items():
            self.committed[lane] += [fresh[lane][node] for node in path]

    def write(self, nodes: dict[int, int], fresh: dict[int, list[int]]) -> None:
        """The newest rows of each lane, which continue ``fresh``."""
        rows = []
        for lane, count in nodes.items():
            rows += range(self.next_row, self.next_row + count)
            fresh[lane] += rows[-count:]
            self.next_row += count
        self.cache.write(range(2 * LAYERS), nodes, numbered(rows))

    @precondition(lambda self: any(self.committed.values()))
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(lane for lane, rows in self.committed.items() if rows)))
        tokens = data.draw(st.integers(1, len(self.committed[source])))
        snapshot = self.cache.snapshot(source)
        lane = self.cache.open()
        self.cache.restore(lane, snapshot, tokens)
        self.committed[lane] = self.committed[source][:tokens]

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def scrub(self, data: st.DataObject) -> None:
        self.cache.scrub(data.draw(st.sampled_from(sorted(self.committed))))

    @invariant()
    def everything_is_in_its_place(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        for lane, numbers in self.committed.items():
            assert_holds(self.cache, lane, numbers)
        if not self.committed:
            assert self.cache.pool.shape[1] == 1, "an empty cache gives its memory back"


TestLanesAgainstLists = LanesAgainstLists.TestCase
TestLanesAgainstLists.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_no_more_is_allocated_than_the_limit_and_what_is_in_use_ask_for():
    cache = PagedCache(LAYERS, HEADS, WIDTH, torch.float64)
    cache.limit_rows(4 * BLOCK_ROWS)
    lane = cache.open(expected_rows=1000)
    assert cache.pool.shape[1] == 4
    cache.begin({lane: 5 * BLOCK_ROWS})
    assert cache.pool.shape[1] == 5, "what is in use may pass the limit"


def test_lanes_that_join_one_by_one_are_not_copied_each_time():
    cache = PagedCache(LAYERS, HEADS, WIDTH, torch.float64)
    for _ in range(64):
        lane = cache.open(expected_rows=2 * BLOCK_ROWS)
        cache.begin({lane: 2 * BLOCK_ROWS})
        cache.commit({lane: range(2 * BLOCK_ROWS)})
    assert cache.growths < 15, "rows were copied again for almost every lane"
    assert 128 <= cache.pool.shape[1] <= GROWTH * 128
    cache.check_integrity()


def test_turned_values_lie_column_by_column():
    cache = PagedCache(LAYERS, HEADS, WIDTH, torch.float64, turned_values=True)
    lane = cache.open()
    cache.begin({lane: 3})
    cache.write(range(2 * LAYERS), {lane: 3}, numbered([1, 2, 3]))
    keys, values = cache.pool[0, 0], cache.pool[1, 0].view(HEADS, WIDTH, BLOCK_ROWS)
    assert torch.equal(keys[:, :3], numbered([1, 2, 3])[0].transpose(0, 1))
    assert torch.equal(values[:, :, :3], numbered([1, 2, 3])[1].permute(1, 2, 0))


@pytest.mark.parametrize("turned_values", [False, True])
def test_scrubbed_rows_hold_no_nan_and_committed_ones_stay(turned_values):
    cache = PagedCache(LAYERS, HEADS, WIDTH, torch.float64, turned_values=turned_values)
    lane = cache.open()
    cache.begin({lane: BLOCK_ROWS + 5})
    rows = numbered(list(range(BLOCK_ROWS + 5)))
    rows[:, 3:] = torch.nan
    cache.write(range(2 * LAYERS), {lane: BLOCK_ROWS + 5}, rows)
    cache.commit({lane: [0, 1, 2]})
    assert cache.pool.isnan().any()
    cache.scrub(lane)
    assert not cache.pool.isnan().any()
    assert_holds(cache, lane, [0, 1, 2])


def test_wrong_paths_and_lanes_are_refused_and_change_nothing():
    cache = PagedCache(LAYERS, HEADS, WIDTH, torch.float64)
    one, other = cache.open(), cache.open()
    cache.begin({one: 3})
    for path in ([1, 0], [0, 0], [3], [-1]):
        with pytest.raises(ValueError, match=f"lane {one} must be increasing node numbers below 3"):
            cache.commit({one: path})
    with pytest.raises(RuntimeError, match=f"lane {other} has no rows in flight"):
        cache.commit({one: [0], other: [0]})
    assert cache.length(one) == 0
    with pytest.raises(RuntimeError, match=f"lane {other} has no rows in flight"):
        cache.extend({one: 1, other: 1})
    with pytest.raises(RuntimeError, match="cannot open a lane while a tree is in flight"):
        cache.open()
    cache.commit({one: [0]})
    with pytest.raises(ValueError, match="only an empty lane can be filled"):
        cache.restore(one, cache.snapshot(one), 1)
    with pytest.raises(ValueError, match="a snapshot of 1 tokens cannot serve the first 2"):
        cache.restore(other, cache.snapshot(one), 2)
    with pytest.raises(ValueError, match=f"lane {one} holds 1 tokens; it cannot be shortened to 2"):
        cache.shorten(one, 2)
    with pytest.raises(ValueError, match="at least one node"):
        cache.begin({one: 0})
    assert isinstance(cache.snapshot(one), Snapshot)
