"""What a drafter's word is worth, learned edge by edge."""

from __future__ import annotations

import random

import pytest

from branchwise.tree import TokenTree
from branchwise.tune.record import SUREST, EdgeRecord, said_of_edges
from branchwise.verify.proposal import DraftTree

pytestmark = pytest.mark.core


def chain(edge: float, nodes: int = 8, told: bool = True) -> DraftTree:
    scores = [edge ** (depth + 1) for depth in range(nodes)]
    return DraftTree.deterministic(TokenTree.from_chain(0, range(1, nodes + 1)), "test", scores if told else ())


def test_edges_by_hand():
    r"""Scores are of whole paths, edges of one step.

        0
       / \\
    .8 1  2 .1
       |
    .2 3
    """
    tree = TokenTree((5, 6, 7, 8), (-1, 0, 0, 1))
    assert said_of_edges(DraftTree.deterministic(tree, "x", (0.8, 0.1, 0.2))) == pytest.approx([0.8, 0.1, 0.25])
    assert said_of_edges(DraftTree.deterministic(tree, "x", (0.0, 0.1, 0.0))) == pytest.approx([0.0, 0.1, 0.0])
    assert said_of_edges(DraftTree.deterministic(tree, "x", ())) == pytest.approx([0.5, 0.25, 0.5])


def test_before_anything_is_known_the_drafter_is_believed():
    assert EdgeRecord().gains(1, chain(0.8, 3)) == pytest.approx([0.8, 0.64, 0.512])
    assert EdgeRecord().gains(1, chain(1.0, 2)) == pytest.approx([SUREST, SUREST**2])


@pytest.mark.parametrize(("said", "true"), [(0.5, 0.8), (0.9, 0.6), (0.6, 0.6), (0.3, 0.02)])
def test_the_error_of_a_long_path_is_corrected_step_by_step(said, true):
    record, coins, draft = EdgeRecord(), random.Random(3), chain(said)
    for _ in range(400):
        depth = 0
        while depth < 8 and coins.random() < true:
            depth += 1
        record.learn(1, draft, range(depth + 1), 99)
    assert record.gains(1, draft)[0] == pytest.approx(true, abs=0.12)
    assert record.gains(1, draft)[3] == pytest.approx(true**4, abs=0.15)
    assert record.gains(2, draft)[0] == pytest.approx(true, abs=0.12), "other lanes share it"


def test_a_right_child_that_was_not_verified_counts():
    cut, verified = EdgeRecord(), EdgeRecord()
    for _ in range(30):
        cut.learn(1, chain(0.5, 2), [0], bonus=1)
        verified.learn(1, chain(0.5, 1), [0, 1], bonus=99)
    assert cut.gains(1, chain(0.5, 1)) == verified.gains(1, chain(0.5, 1))
    assert cut.gains(1, chain(0.5, 1))[0] > 0.9


def test_a_lane_whose_text_has_changed_is_noticed_soon():
    record = EdgeRecord()
    for _ in range(200):
        record.learn(1, chain(0.9), range(9), 99)
        record.learn(2, chain(0.9), range(9), 99)
    assert record.gains(1, chain(0.9))[0] > 0.9
    for _ in range(30):
        record.learn(1, chain(0.9), [0], 99)
    assert record.gains(1, chain(0.9))[0] < 0.8 < record.gains(2, chain(0.9))[0]
    record.forget(1)
    assert record.lane_factor(1) == 1.0


def test_gains_never_rise_along_a_path():
    record = EdgeRecord()
    for _ in range(50):
        record.learn(1, chain(0.3), range(9), 99)
    gains = record.gains(1, chain(0.3))
    assert gains == sorted(gains, reverse=True) and gains[0] <= SUREST
