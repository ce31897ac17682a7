"""Seconds of lanes are told apart from seconds of nodes, in steps where both come together."""

from __future__ import annotations

import random

import pytest

from branchwise.tune.cost_curve import CostCurve
from branchwise.tune.lane_cost import LaneCost

pytestmark = pytest.mark.core

BASE, NODE, LANE = 40.0, 0.4, 0.8


def took(nodes: int, lanes: int) -> float:
    return BASE + NODE * nodes + LANE * (lanes - 1)


def test_lanes_that_come_and_go_are_not_booked_as_nodes() -> None:
    draw, curve = random.Random(1), CostCurve()
    for _ in range(400):
        lanes = draw.randint(1, 16)
        nodes = lanes * draw.randint(1, 4) + draw.randint(0, 3)
        curve.learn(nodes, took(nodes, lanes) * draw.uniform(0.98, 1.02), lanes=lanes)
    assert curve.beside(16) == pytest.approx(15 * LANE, rel=0.15)
    assert curve.seconds(48) - curve.seconds(16) == pytest.approx(32 * NODE, rel=0.15)
    assert curve.seconds(16) + curve.beside(16) == pytest.approx(took(16, 16), rel=0.03)


def test_plain_steps_say_nothing_of_lanes() -> None:
    """Nodes and lanes are one number there: what they take is the nodes', as for a single lane."""
    curve = CostCurve()
    for lanes in [*range(1, 17)] * 6:
        curve.learn(lanes, took(lanes, lanes), lanes=lanes)
    assert curve.beside(16) == pytest.approx(0, abs=0.5)
    assert curve.seconds(16) == pytest.approx(took(16, 16), rel=0.02)


def test_one_lane_costs_nothing_beside_itself_and_no_cost_is_negative() -> None:
    cost = LaneCost()
    for lanes, seconds in ((1, 5.0), (8, 4.0)) * 20:
        cost.learn(3, lanes, 9, seconds)
    assert cost.seconds(8) == cost.seconds(1) == cost.seconds(0) == 0


def test_a_hiccup_says_little_and_is_forgotten() -> None:
    cost = LaneCost()
    for step in range(200):
        lanes = 1 + step % 4
        cost.learn(3, lanes, 9, took(9, lanes) * (100 if step == 100 else 1))
    assert cost.seconds(2) == pytest.approx(LANE, rel=0.4)
    for step in range(400):
        cost.learn(3, 1 + step % 4, 9, took(9, 1 + step % 4))
    assert cost.seconds(2) == pytest.approx(LANE, rel=0.05)
