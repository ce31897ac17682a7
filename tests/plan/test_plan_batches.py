"""Which budget pays at which batch size: few lanes wait for weights and take trees, many compute and do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.plan.acceptance import HostSeconds, from_tokens_per_step
from branchwise.plan.batches import Planner, parse_batches
from branchwise.plan.hardware import read_hardware
from branchwise.plan.step_cost import StepModel
from plan_rig import HALVES, LARGE, ONE_LAYER, SLOW, cost, steps

pytestmark = pytest.mark.core

H100 = read_hardware("h100")
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
#: computes and does nothing else: no bytes, no launch, no context to speak of
COMPUTING = replace(SLOW, bytes_per_second=1e15, kernel_seconds={"eager": 0.0}, memory_bytes=1e12)


def large(context: int = 256, engine: str = "compiled", **options) -> Planner:
    return Planner(StepModel(cost(LARGE, H100, engine=engine), HALVES, **options), context)


def test_a_step_that_costs_the_same_for_any_tree_takes_the_largest():
    plan = Planner(steps(), 1).plan(3)
    assert (plan.budget, plan.step.total) == (17, pytest.approx(1.0))
    assert plan.per_user == pytest.approx(HALVES.expected_tokens(17))
    assert plan.in_all == pytest.approx(3 * plan.per_user)
    assert plan.gain == pytest.approx(HALVES.expected_tokens(17))


def test_where_every_node_costs_its_arithmetic_no_tree_pays():
    planner = Planner(steps(hardware=COMPUTING), 1)
    plan = planner.plan(8)
    assert (plan.budget, plan.gain) == (1, 1.0)
    assert planner.crossover(BATCHES) == 1


def test_trees_stop_paying_somewhere_and_the_place_is_found():
    planner = large()
    crossover = planner.crossover(BATCHES)
    assert crossover is not None and 8 < crossover <= 512
    assert planner.plan(crossover - 1).budget > 1
    assert all(planner.plan(batch).budget == 1 for batch in (crossover, crossover + 1, 512))
    budgets = [planner.plan(batch).budget for batch in BATCHES]
    assert budgets == sorted(budgets, reverse=True) and budgets[0] > 8


def test_long_contexts_keep_trees_worth_their_while():
    """A lane's keys are read once for all of its nodes, however many lanes there are."""
    assert large(context=65536).plan(256).budget > 1 == large(context=256).plan(256).budget


def test_what_a_plan_says_where_trees_never_stop_paying():
    assert large(context=65536).crossover([1, 4, 16]) is None


def test_a_model_that_drafts_costs_its_forwards():
    fast = replace(SLOW, bytes_per_second=1e9, kernel_seconds={"eager": 1e-3})
    free = Planner(steps(), 1).plan(1)
    drafted = Planner(steps(drafter=cost(hardware=fast)), 1)
    plan = drafted.plan(1)
    levels = HALVES.level_widths(plan.budget)
    one = drafted.model.drafter.seconds([]).total
    assert plan.step.draft >= len(levels) * one > 0
    assert plan.per_user < free.per_user


def test_the_hosts_time_counts_for_every_lane_or_not_at_all():
    acceptance = from_tokens_per_step("x", {9: 3.0}, {1: HostSeconds(0.0, 0.1), 9: HostSeconds(0.1, 0.1)})
    plan = Planner(steps(acceptance=acceptance), 1).plan(10)
    assert plan.plain.host == pytest.approx(1.0)
    assert plan.step.host == pytest.approx(10 * acceptance.host_seconds(plan.budget).total)
    assert Planner(steps(acceptance=acceptance, with_host=False), 1).plan(10).step.host == 0


def test_memory_says_what_fits():
    """Weights 240 bytes, 8 bytes per token, logits of 10 x 6 bytes per node."""
    planner = Planner(steps(hardware=replace(SLOW, memory_bytes=1000)), 9, largest=1)
    assert planner.memory_bytes(2, 1) == 240 + 2 * (10 * 8 + 60)
    assert planner.most_lanes() == (900 - 240) // 140 == 4
    assert planner.plan(4).fits and not planner.plan(5).fits


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["h100", "h200", "b200"]),
    st.sampled_from(["eager", "compiled"]),
    st.integers(1, 30_000),
    st.lists(st.integers(1, 600), min_size=2, max_size=4, unique=True),
)
def test_more_lanes_never_give_a_user_more(machine, engine, context, batches):
    planner = Planner(StepModel(cost(LARGE, read_hardware(machine), engine=engine), HALVES), context)
    rates = [planner.plan(batch).per_user for batch in sorted(batches)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(rates))


def test_newer_machines_are_faster():
    rates = [
        Planner(StepModel(cost(LARGE, read_hardware(name), engine="compiled"), HALVES), 2048).plan(8).per_user
        for name in ("h100", "h200", "b200")
    ]
    assert rates == sorted(rates) and rates[2] > 1.5 * rates[0]


def test_ranges_of_batches():
    assert parse_batches("1..512") == BATCHES
    assert parse_batches("3..20") == [3, 6, 12, 20]
    assert parse_batches("7..7") == parse_batches("7") == [7]
    assert parse_batches("64, 1") == [1, 64]
    for text in ("", "0..4", "1..", "a", "1,,2", "-1"):
        with pytest.raises(ValueError, match=r"must be like 1\.\.512 or 1,8,64"):
            parse_batches(text)
    with pytest.raises(ValueError, match="falls"):
        parse_batches("8..4")


def test_numbers_out_of_range():
    with pytest.raises(ValueError, match="context must be >= 1, got 0"):
        Planner(steps(), 0)
    with pytest.raises(ValueError, match="from 1 to 17, the largest cannot be 18"):
        Planner(steps(), 1, largest=18)
    assert ONE_LAYER.first_layers(1).layers == 1
    with pytest.raises(ValueError, match="layers must be 1 to 1 for one layer, got 2"):
        ONE_LAYER.first_layers(2)
