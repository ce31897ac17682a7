"""Measuring a curve on a target: what is fed, what is counted, and that nothing is left behind."""

from __future__ import annotations

import pytest
import torch

from branchwise.target import HuggingFaceTarget
from branchwise.tune.measure import CHUNK, count_parts, fitting_contexts, measure_table
from zoo import tiny_llama

pytestmark = pytest.mark.core


class FakeTarget:
    """Tells the time by what it was asked: a forward costs its nodes and its context; some of each kind are slow."""

    vocab_size = 7
    device = torch.device("cpu")
    context_limit = 3000
    solo_beyond = None

    def __init__(self, fails_at: int | None = None, hiccups: dict[int, float] | None = None) -> None:
        self.now = 0.0
        self.open_lanes, self.fed, self.in_flight = set(), [], False
        self.seen: dict[tuple[int, int], int] = {}
        self._fails_at = fails_at
        self._hiccups = {1: 50.0, 3: 20.0} if hiccups is None else hiccups

    def open(self, expected_rows=0, longest=None):
        self.open_lanes.add(3)
        return 3

    def feed(self, lane, tokens, feature_layers=()):
        assert lane in self.open_lanes and 0 < len(tokens) <= CHUNK and max(tokens) < self.vocab_size
        self.fed.append(len(tokens))
        self.now += 100.0
        return {}

    def forward(self, trees, feature_layers=()):
        ((lane, tree),) = trees.items()
        assert lane in self.open_lanes and not self.in_flight
        if len(tree) == self._fails_at:
            raise RuntimeError("out of memory")
        self.in_flight = True
        here = (sum(self.fed), len(tree))
        self.seen[here] = self.seen.get(here, 0) + 1
        hiccup = self._hiccups.get(self.seen[here], 1.0)
        self.now += hiccup * (len(tree) + sum(self.fed) / 1000)
        return {}

    def rollback(self):
        self.in_flight = False

    def free(self, lane):
        self.open_lanes.remove(lane)


def test_medians_of_forwards_by_nodes_and_context():
    target, told = FakeTarget(), []
    table = measure_table(target, [100, 1200], [1, 4, 9], 5, told.append, clock=lambda: target.now)
    assert table.contexts == (100, 1200)
    assert [column.nodes for column in table.columns] == [(1, 4, 9)] * 2
    assert table.columns[0].seconds == pytest.approx((1.1, 4.1, 9.1))
    assert table.columns[1].seconds == pytest.approx((2.2, 5.2, 10.2))
    assert target.fed == [100, 512, 512, 76]
    assert len(told) == count_parts([100, 1200], 5) == 4 + 12
    assert not target.open_lanes and not target.in_flight


def test_the_first_round_is_not_counted():
    target = FakeTarget(hiccups={1: 0.01})
    table = measure_table(target, [100], [1, 4], repeats=1, clock=lambda: target.now)
    assert table.columns[0].seconds == pytest.approx((1.1, 4.1))
    assert set(target.seen.values()) == {2}


def test_a_failure_frees_the_lane():
    target = FakeTarget(fails_at=4)
    with pytest.raises(RuntimeError, match="out of memory"):
        measure_table(target, [10], [1, 4])
    assert not target.open_lanes and not target.in_flight


def test_contexts_that_fit():
    target = FakeTarget()
    assert fitting_contexts(target, [100, 2990, 2991, 9000], 9) == [100, 2990]
    target.solo_beyond = 200
    assert fitting_contexts(target, [100, 2990], 9) == [100]


@pytest.mark.parametrize(
    ("contexts", "nodes", "repeats", "message"),
    [
        ([], [1], 1, "contexts must be rising"),
        ([2, 2], [1], 1, "contexts must be rising"),
        ([0], [1], 1, "contexts must be rising"),
        ([2], [4, 1], 1, "nodes must be rising"),
        ([2], [1], 0, "repeats must be >= 1, got 0"),
        ([2, 2999], [1, 8], 1, "do not fit.*3000"),
    ],
)
def test_refused_before_anything_is_opened(contexts, nodes, repeats, message):
    target = FakeTarget()
    with pytest.raises(ValueError, match=message):
        measure_table(target, contexts, nodes, repeats)
    assert not target.fed and not target.open_lanes


def test_a_real_model_is_left_as_it_was_found():
    model = tiny_llama()
    target = HuggingFaceTarget(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prompt = torch.tensor([[7, 3, 11]])
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)
    table = measure_table(target, [5, 20], [1, 2, 5], repeats=1)
    assert all(seconds > 0 for column in table.columns for seconds in column.seconds)
    assert not target.cache.lanes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model.generate(prompt, max_new_tokens=8, do_sample=False), expected)
