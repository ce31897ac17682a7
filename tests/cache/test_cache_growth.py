"""What the cache allocates, and that nothing leaks: not a row, not a buffer, not a tensor."""

from __future__ import annotations

import gc
import math
import weakref

import psutil
import pytest
import torch

from branchwise.cache import TreeCache, TreeLayer
from branchwise.cache.tree_layer import GROWTH
from branchwise.draft.adversary import AdversaryDrafter
from branchwise.verify.greedy import Greedy
from loop_rig import committed_tokens, greedy_request, start_session
from zoo import tiny_llama

pytestmark = pytest.mark.core

STATE = (1, 1, 1, 2)  # [B, K, N, D] of one row


class Allocations:
    """Bytes of cache buffers alive at every allocation, seen at the one place where buffers are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._alive: dict[int, int] = {}
        self.peak = 0
        self.largest = 0
        make = TreeLayer._zeros

        def watched(like, slots, rows):
            new = make(like, slots, rows)
            key, size = id(new), new.numel() * new.element_size()
            self._alive[key] = size
            weakref.finalize(new, self._alive.pop, key)
            self.largest = max(self.largest, size)
            self.peak = max(self.peak, self.bytes)
            return new

        monkeypatch.setattr(TreeLayer, "_zeros", staticmethod(watched))

    @property
    def bytes(self) -> int:
        return sum(self._alive.values())


def feed(cache: TreeCache, lane: int, width: int, keep: int) -> None:
    """One forward of ``width`` nodes over the lane's slot, of which the first ``keep`` are committed."""
    slot = cache.slot(lane)
    cache.begin(range(slot, slot + 1))
    rows = torch.zeros(STATE).expand(1, 1, width, 2)
    for index in range(len(cache.layers)):
        cache.update(rows, rows, index)
    cache.commit({lane: range(keep)})


def test_the_first_allocation_is_what_was_expected():
    cache = TreeCache((None, 6))
    lane = cache.open(expected_rows=300)
    assert cache.nbytes == 0, "nothing is allocated before the first rows tell their shapes"
    feed(cache, lane, 10, 10)
    # the sliding layer needs its window, a slack of 64 rows and the tree
    assert [layer.capacity for layer in cache.layers] == [300, 5 + 64 + 10]
    feed(cache, lane, 290, 290)
    assert cache.layers[0].capacity == 300


def test_rows_grow_by_a_quarter_and_by_no_more_than_needed():
    cache = TreeCache((None,))
    lane = cache.open()
    feed(cache, lane, 9, 1)
    seen = [9]
    for _ in range(700):
        feed(cache, lane, 9, 1)
        needed, capacity = cache.length(lane) - 1 + 9, cache.layers[0].capacity
        if capacity != seen[-1]:
            assert seen[-1] == needed - 1, "it grows only when a row no longer fits"
            assert capacity == max(needed, math.ceil(seen[-1] * GROWTH))
            seen.append(capacity)
        assert needed <= capacity <= max(GROWTH * needed + 1, 9)
    assert len(seen) < 23  # log(709 / 9) / log(1.25) = 19.6: geometric, not one row at a time
    feed(cache, lane, 5000, 1)  # a jump is met exactly
    assert cache.layers[0].capacity == 5000 + 701


def test_growth_holds_one_old_buffer_at_a_time(monkeypatch):
    """The bar: for one lane of 2,048 tokens or more, peak bytes <= 1.3 x those of committed rows plus budget."""
    allocations = Allocations(monkeypatch)
    layers, budget, committed = 30, 33, 2048
    cache = TreeCache((None,) * layers)
    lane = cache.open(expected_rows=committed + budget)
    feed(cache, lane, committed, committed)
    row_bytes = layers * 2 * STATE[-1] * 4
    worst = 0.0
    for _ in range(400):
        allocations.peak = 0
        feed(cache, lane, budget, 5)
        assert allocations.peak <= cache.nbytes + allocations.largest
        bytes_at_most = max(allocations.peak, cache.nbytes)
        worst = max(worst, bytes_at_most / ((cache.length(lane) - 5 + budget) * row_bytes))
    assert cache.length(lane) == committed + 2000
    assert 1.2 < worst <= 1.3
    assert allocations.bytes == cache.nbytes, "no other buffer is left alive"


def test_a_sliding_layer_stops_growing():
    cache = TreeCache((50,))
    lane = cache.open()
    for _ in range(100):
        feed(cache, lane, 17, 3)
        assert cache.layers[0].capacity <= GROWTH * (49 + 64 + 17)
    assert cache.length(lane) == 300


def test_freeing_the_last_lane_gives_the_buffers_back(monkeypatch):
    allocations = Allocations(monkeypatch)
    cache = TreeCache((None, 6))
    for _ in range(3):
        lanes = [cache.open(expected_rows=50) for _ in range(8)]
        for lane in lanes:
            feed(cache, lane, 7, 7)
        for lane in lanes:
            assert cache.nbytes > 0
            cache.free(lane)
        assert cache.nbytes == allocations.bytes == 0
    # and a single prompt after a batch of eight does not pay for eight
    lane = cache.open(expected_rows=50)
    feed(cache, lane, 7, 7)
    assert [layer.keys.shape[0] for layer in cache.layers] == [1, 1]


def test_lanes_that_join_one_by_one_are_not_copied_each_time(monkeypatch):
    allocations = []
    make = TreeLayer._zeros

    def counted(*args):
        allocations.append(args)
        return make(*args)

    monkeypatch.setattr(TreeLayer, "_zeros", staticmethod(counted))
    cache = TreeCache((None,))
    for _ in range(64):
        feed(cache, cache.open(expected_rows=10), 5, 5)
    slots = cache.layers[0].keys.shape[0]
    assert 64 <= slots <= 64 * GROWTH + 1
    assert len(allocations) / 2 < 20, "keys and values were copied again for almost every lane"
    cache.check_integrity()


def test_five_thousand_steps_of_an_always_wrong_drafter_leak_nothing():
    steps, budget, prompt = 5000, 9, [7, 3, 11, 19, 23]
    model = tiny_llama(
        num_hidden_layers=1, hidden_size=8, intermediate_size=8, head_dim=4, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=8192, dtype=torch.float32,
    )  # fmt: skip
    never = 36
    model.lm_head.weight.data[never] = 0
    bias = torch.nn.Parameter(torch.zeros(37))
    bias.data[never] = -1e4  # the target never writes this token: whoever drafts it is wrong
    model.lm_head.bias = bias
    session = start_session(model, AdversaryDrafter(pool=[never]), budget)
    lane = session.add(greedy_request(prompt, steps), Greedy())
    layer = session.target.cache.layers[0]
    capacities, tensors, resident = [layer.capacity], {}, {}
    for step in range(steps - 1):
        session.step()
        assert len(lane.records[-1].tokens) == 1, "something was accepted"
        assert len(lane.records[-1].draft.tree) == budget or step >= steps - 1 - budget
        assert layer.kept == [len(prompt) - 1 + step + 1] == [len(committed_tokens(lane))]
        assert layer.in_flight == 0
        if layer.capacity != capacities[-1]:
            assert layer.capacity == max(layer.kept[0] - 1 + budget, math.ceil(capacities[-1] * GROWTH))
            capacities.append(layer.capacity)
        if step in (500, 2500, 4500):
            gc.collect()
            tensors[step] = sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())
            resident[step] = psutil.Process().memory_info().rss
    session.target.cache.check_integrity()
    assert tensors[4500] <= tensors[500] + 2, "tensors are kept from step to step"
    # what grows by design: one record per step (the draft, the verdict, the seconds), about 3 KiB at this budget
    # the process may have grown once for other reasons (it has run other tests); a leak grows in both halves
    halves = resident[2500] - resident[500], resident[4500] - resident[2500]
    assert min(halves) < 2000 * 8 * 1024, halves
    session.step()
    assert not session.active
    assert session.target.cache.nbytes == 0
