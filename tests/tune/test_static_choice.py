"""The best static tree on a cost curve: Sequoia's optimum of every size, and the size that gives most per second."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.tree import StaticShape
from branchwise.tune.sequoia import sequoia
from branchwise.tune.static_choice import best_static, growing_shapes

pytestmark = pytest.mark.core


@settings(max_examples=25, deadline=None)
@given(acceptance=st.lists(st.integers(0, 20).map(lambda n: n / 20), max_size=4), size=st.integers(1, 10))
def test_the_first_nodes_are_sequoias_optimum_of_every_size(acceptance, size):
    paths, chances = growing_shapes(acceptance, size)
    shape = StaticShape(paths)
    assert len(shape) <= size
    assert shape.expected_tokens(acceptance) == pytest.approx(1.0 + sum(chances))
    assert shape.expected_tokens(acceptance) == pytest.approx(sequoia(acceptance, size).expected_tokens(acceptance))
    assert chances == sorted(chances, reverse=True)


def test_by_hand():
    # the chain's chances 0.6, 0.36, ...; the second child of the root 0.2
    assert growing_shapes((0.6, 0.5), 4) == (
        [(0,), (0, 0), (0, 0, 0)],
        pytest.approx([0.6, 0.36, 0.216]),
    )
    # three nodes cost 1.2, four 2.4: (1 + 0.6 + 0.36) / 1.2 is the most
    choice = best_static((0.6, 0.5), {1: 1.0, 2: 1.2, 3: 1.2, 4: 2.4}.__getitem__, largest=4)
    assert (choice.budget, choice.shape.height, choice.seconds) == (3, 2, 1.2)
    assert choice.tokens_per_step == pytest.approx(1.96) and choice.speedup == pytest.approx(1.96 / 1.2)


def test_free_nodes_are_all_taken_and_dear_ones_are_not():
    assert best_static((0.5, 0.3), lambda nodes: 1.0, largest=20).budget == 20
    plain = best_static((0.5, 0.3), lambda nodes: float(nodes), largest=20)
    assert (plain.budget, plain.tokens_per_step, plain.speedup) == (1, 1.0, 1.0)
    assert best_static((), lambda nodes: 1.0).budget == best_static((0.0, 0.0), lambda nodes: 1.0).budget == 1


def test_refused():
    with pytest.raises(ValueError, match="must be >= 1, got 0"):
        best_static((0.5,), lambda nodes: 1.0, largest=0)
    with pytest.raises(ValueError, match=r"acceptance\[0\] must be a probability"):
        best_static((1.5,), lambda nodes: 1.0)
