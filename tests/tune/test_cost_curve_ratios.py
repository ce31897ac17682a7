"""The online curve on top of a measured table: only ratios are learned, and what is old gives way."""

from __future__ import annotations

import pytest

from branchwise.tune.cost_curve import FORGOTTEN_AFTER, LOOKED_AT_EVERY, NEAR, REMEMBERED, CostCurve
from branchwise.tune.cost_table import Column, CostTable

pytestmark = pytest.mark.core

TABLE = CostTable(
    (Column(100, (1, 8, 16, 32), (1.0, 1.0, 2.0, 4.0)), Column(300, (1, 8, 16, 32), (3.0, 3.0, 6.0, 12.0)))
)


def test_the_table_is_believed_before_the_first_step():
    curve = CostCurve(TABLE)
    assert [curve.seconds(nodes, 100) for nodes in (1, 12, 32)] == [1.0, 1.5, 4.0]
    assert curve.seconds(16, 200) == 4.0


def test_one_busy_step_speaks_for_every_size_and_context():
    curve = CostCurve(TABLE)
    curve.learn(8, 2.0, context=100)
    assert [curve.seconds(nodes, 100) for nodes in (1, 8, 32)] == [2.0, 2.0, 8.0]
    assert curve.seconds(32, 300) == 24.0


def test_where_the_table_is_wrong_that_is_learned():
    curve = CostCurve(TABLE)
    for _ in range(40):
        curve.learn(1, 1.0, context=100)
        curve.learn(32, 8.0, context=100)
    assert curve.seconds(1, 100) == pytest.approx(1.0, rel=0.05)
    assert curve.seconds(32, 100) == pytest.approx(8.0, rel=0.08)


def test_sizes_not_seen_for_long_follow_the_others():
    curve = CostCurve(TABLE)
    curve.learn(32, 4.0, context=100)
    for _ in range(FORGOTTEN_AFTER // 2):
        curve.learn(1, 3.0, context=100)
    assert curve.seconds(1, 100) == 3.0
    assert curve.seconds(32, 100) == pytest.approx(12.0, rel=0.1), "the machine is three times as busy"


def test_a_hiccup_does_not_move_it():
    curve = CostCurve(TABLE)
    for seconds in (1.0, 1.0, 50.0):
        curve.learn(1, seconds, context=100)
    assert curve.seconds(1, 100) == 1.0


def test_costs_never_fall_whatever_the_ratios():
    curve = CostCurve(TABLE)
    curve.learn(1, 5.0, context=100)
    curve.learn(32, 1.0, context=100)
    profile = list(curve.profile(60, 100))
    assert len(profile) == 60
    assert profile == sorted(profile)


def test_a_column_of_what_was_learned():
    curve = CostCurve()
    for nodes, seconds in ((1, 1.0), (9, 2.0)):
        curve.learn(nodes, seconds)
        curve.learn(nodes, seconds)
    assert curve.column(256) is None, "two sizes make no curve"
    curve.learn(33, 5.0)
    assert curve.column(256) is None, "one step may have been a hiccup"
    curve.learn(33, 5.0)
    assert curve.column(256) == Column(256, (1, 9, 33), (1.0, 2.0, 5.0))
    curve.adopt(CostTable((curve.column(256),)))
    assert curve.seconds(21, 256) == 3.5
    curve.learn(9, 4.0, context=256)
    assert curve.seconds(21, 256) == 7.0


def test_steps_of_many_lanes_alone_are_no_column():
    curve = CostCurve()
    for nodes in (7, 7, 11, 11, 15, 15):
        curve.learn(nodes, 0.1 * nodes, lanes=7)
    assert curve.column(128) is None
    for _ in range(2):
        curve.learn(1, 0.5)
    assert curve.column(128).nodes[0] == 1


def test_with_a_table_a_column_has_the_tables_sizes():
    curve = CostCurve(TABLE)
    for nodes in (1, 6, 20):
        for _ in range(2):
            curve.learn(nodes, 2 * TABLE.seconds(nodes, 1000), context=1000)
    column = curve.column(1024)
    assert column.nodes == (1, 8, 16, 32)
    assert column.seconds == pytest.approx([2 * TABLE.seconds(nodes, 1024) for nodes in column.nodes])


def test_contexts_near_each_other_share_a_look_at_the_table():
    curve = CostCurve(TABLE)
    assert curve.seconds(1, 200) == curve.seconds(1, 200 + NEAR) == 2.0
    assert curve.seconds(1, 201 + NEAR) == pytest.approx(1.0 + 2.0 * (101 + NEAR) / 200)


def test_of_sizes_known_well_some_steps_share_a_look_at_what_was_learned():
    curve = CostCurve(TABLE)
    for _ in range(REMEMBERED):
        curve.learn(1, 1.0, context=100)
    assert curve.seconds(1, 100) == 1.0
    seen = []
    for _ in range(4 * REMEMBERED):
        curve.learn(1, 3.0, context=100)
        seen.append(curve.seconds(1, 100))
    changes = [step for step in range(1, len(seen)) if seen[step] != seen[step - 1]]
    assert seen[-1] == pytest.approx(3.0) and all(step % LOOKED_AT_EVERY == LOOKED_AT_EVERY - 1 for step in changes)
    curve.learn(32, 12.0, context=100)
    assert curve.seconds(32, 100) == pytest.approx(12.0, rel=0.01), "a new size is looked at at once"
