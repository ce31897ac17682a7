"""Packed rows, copies of lanes, and a cache that keeps below its limit."""

from __future__ import annotations

import pytest
import torch

from branchwise.cache import Packing, TreeCache

pytestmark = pytest.mark.core

WINDOWS = (None, 5)


def write(cache: TreeCache, lane: int, numbers: range) -> None:
    """Commits rows that tell their number."""
    slot = cache.slot(lane)
    cache.begin(range(slot, slot + 1))
    for layer in cache.layers:
        rows = torch.tensor([float(n) for n in numbers]).view(1, 1, -1, 1).expand(1, 2, -1, 3)
        layer.update(rows, -rows)
    cache.commit({lane: range(len(numbers))})


def held(cache: TreeCache, lane: int, layer: int) -> list[float]:
    keys, values = cache.rows(lane, layer)
    assert torch.equal(keys, -values)
    return keys[0, :, 0].tolist()


def test_packing_by_hand():
    """Lanes a, b, c with 2, 1 and 3 nodes: a0 a1 b0 c0 c1 c2."""
    packing = Packing((2, 1, 3))
    packed = torch.tensor([10.0, 11, 20, 30, 31, 32]).view(1, 1, 6, 1)
    assert (packing.lanes, packing.width, packing.tokens) == (3, 3, 6)
    spread = packing.spread(packed)
    assert spread[:, 0, :, 0].tolist() == [[10, 11, 10], [20, 20, 20], [30, 31, 32]]
    assert torch.equal(packing.gather(spread), packed)


@pytest.mark.parametrize("nodes", [(1,), (4, 4), (3, 1, 1, 7)])
def test_packing_keeps_heads_and_columns(nodes):
    packing = Packing(nodes)
    packed = torch.randn(1, 5, sum(nodes), 2)
    spread = packing.spread(packed)
    assert spread.shape == (len(nodes), 5, max(nodes), 2)
    start = 0
    for lane, count in enumerate(nodes):
        assert torch.equal(spread[lane, :, :count], packed[0, :, start : start + count])
        start += count
    assert torch.equal(packing.gather(spread), packed)


def test_a_snapshot_fills_another_lane_and_is_not_changed_by_the_first():
    cache = TreeCache(WINDOWS)
    one = cache.open()
    write(cache, one, range(8))
    snapshot = cache.snapshot(one)
    write(cache, one, range(8, 90))
    cache.free(one)
    two = cache.open()
    cache.restore(two, snapshot, 6)
    assert held(cache, two, 0) == held(cache, two, 1) == list(range(6))
    write(cache, two, range(100, 103))
    assert held(cache, two, 0) == [*range(6), 100, 101, 102]
    cache.check_integrity()


def test_a_trimmed_window_serves_only_lengths_whose_window_it_holds():
    cache = TreeCache(WINDOWS)
    lane = cache.open()
    write(cache, lane, range(100))
    snapshot = cache.snapshot(lane)
    assert len(held(cache, lane, 1)) == 4, "the layer with a window has dropped 96 rows"
    assert snapshot.reach(200) == snapshot.reach(100) == 100
    assert snapshot.reach(99) == 0
    other = cache.open()
    with pytest.raises(ValueError, match="a snapshot of 100 tokens cannot serve the first 99"):
        cache.restore(other, snapshot, 99)
    cache.restore(other, snapshot, 100)
    assert held(cache, other, 1) == [96, 97, 98, 99]
    assert cache.length(other) == 100
    with pytest.raises(ValueError, match="only an empty lane"):
        cache.restore(other, snapshot, 100)
    cache.check_integrity()


def area(cache: TreeCache) -> int:
    return max(layer.keys.shape[0] * layer.keys.shape[2] for layer in cache.layers)


def test_rows_stay_below_the_limit_whatever_axis_grew_first():
    cache = TreeCache((None,))
    cache.limit_rows(120)
    long = cache.open(expected_rows=100)
    write(cache, long, range(100))
    assert area(cache) <= 120
    cache.free(long)
    keeper = cache.open()
    write(cache, keeper, range(3))
    lanes = [cache.open() for _ in range(9)]
    for lane in lanes:
        write(cache, lane, range(10 * lane, 10 * lane + 12))
        assert area(cache) <= 120
    for lane in lanes[1:]:
        cache.free(lane)
    write(cache, lanes[0], range(500, 540))
    assert area(cache) <= 120
    assert held(cache, keeper, 0) == [0, 1, 2]
    assert held(cache, lanes[0], 0) == [*range(10 * lanes[0], 10 * lanes[0] + 12), *range(500, 540)]
    cache.check_integrity()
