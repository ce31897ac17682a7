"""The cost of a forward: cases worked out by hand, and what must hold for every machine and model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.plan.forward_cost import Lanes
from branchwise.plan.hardware import LinearPoint, Measured
from branchwise.plan.rates import seconds_per_byte
from plan_rig import LARGE, ONE_LAYER, SLOW, cost

pytestmark = pytest.mark.core


def test_one_row_waits_for_its_bytes():
    """120 weights of 2 bytes; 4 visible rows of 4 elements; 256 elements moved by small operations; 68 kernels."""
    seconds = cost().seconds([Lanes(1, 3)])
    assert seconds.linear == pytest.approx(240 / 100)
    assert seconds.attention == pytest.approx(4 * 4 * 2 / 100)
    small = 44 * 2 + 13 * (2 + 4) + 5 * 14 + 2 * 10
    assert seconds.small == pytest.approx(small * 2 / 100)
    assert seconds.launch == pytest.approx(0.68)
    assert seconds.links == 0
    assert seconds.total == pytest.approx(2.4 + 0.32 + 5.12 + 0.68)
    assert seconds.reads_weights


def test_many_rows_wait_for_their_arithmetic():
    """2 x 120 operations per row: from 10 rows on multiplying takes longer than reading."""
    assert cost().seconds([Lanes(10, 3)]).linear == pytest.approx(2.4)
    many = cost().seconds([Lanes(30, 3)])
    assert many.linear == pytest.approx(2 * 30 * 120 / 1000)
    assert not many.reads_weights
    # 30 nodes see 33 rows each: 2 x 30 x 33 x 4 operations, or 33 x 4 x 2 bytes
    assert many.attention == pytest.approx(max(2 * 30 * 33 * 4 / 1000, 33 * 8 / 100))


def test_lanes_share_the_weights_and_not_their_keys():
    one, two = (cost().seconds([Lanes(1, 3, count)]) for count in (1, 2))
    assert two.linear == one.linear
    assert two.attention == pytest.approx(2 * one.attention)
    apart = cost().seconds([Lanes(1, 3), Lanes(1, 3)])
    assert apart == two


def test_a_prompt_is_read_without_the_output_matrix():
    assert cost().seconds([Lanes(1, 0)], with_logits=False).linear == pytest.approx(2.0)


def test_a_window_bounds_what_is_read_and_held():
    windowed = cost(replace(ONE_LAYER, windows=(5,)))
    assert windowed.seconds([Lanes(1, 100)]).attention == pytest.approx(6 * 8 / 100)
    assert windowed.lane_bytes(100) == 5 * 8
    assert cost().lane_bytes(100) == 100 * 8


def test_launching_hides_behind_the_device_where_it_overlaps():
    hidden = cost(hardware=replace(SLOW, overlaps_launch=True)).seconds([Lanes(1, 3)])
    assert hidden.total == pytest.approx(hidden.device)
    slow_start = replace(SLOW, overlaps_launch=True, kernel_seconds={"eager": 1.0})
    late = cost(hardware=slow_start).seconds([Lanes(1, 3)])
    assert late.total == pytest.approx(68) and late.bound == "launch"


def test_two_devices_share_the_work_and_pay_for_their_link():
    shape = replace(ONE_LAYER, heads=2, kv_heads=2)
    one, two = (cost(shape, devices=devices).seconds([Lanes(1, 3)]) for devices in (1, 2))
    assert two.linear == pytest.approx(one.linear / 2)
    assert two.attention == pytest.approx(one.attention / 2)
    # two sums of 2 elements of 2 bytes, each sent twice by half; one gathering of 10 logits by half
    assert two.links == pytest.approx(2 * (0.5 + 2 * 0.5 * 4 / 10) + 0.5 + 0.5 * 20 / 10)


def test_a_key_head_that_cannot_be_cut_is_kept_by_every_device():
    shape = replace(ONE_LAYER, heads=4, kv_heads=1)
    assert cost(shape, devices=4).token_bytes == cost(shape).token_bytes


def test_experts_are_read_as_far_as_they_are_touched():
    """Four experts of 10 weights, two of them for every token; the machine computes for nothing."""
    shape = replace(ONE_LAYER, expert_parameters=40, experts=4, experts_taken=2)
    assert [shape.touched_experts(rows) for rows in (1, 2)] == [2, 3]
    fast = replace(SLOW, operations_per_second={"bfloat16": 1e12})
    dense = cost(hardware=fast).seconds([Lanes(1, 0)]).linear
    for rows, touched in ((1, 2), (2, 3), (200, 4)):
        more = cost(shape, fast).seconds([Lanes(rows, 0)]).linear - dense
        assert more == pytest.approx(touched * 10 * 2 / 100)
    assert shape.active_parameters == 120


def test_a_measured_machine_goes_by_what_was_measured():
    points = (LinearPoint(1, 0.01), LinearPoint(3, 0.02), LinearPoint(9, 0.08))
    measured = replace(SLOW, measured=Measured("bfloat16", points, 50.0, 1e9, 10.0, 2.0, 3.0))
    seconds = cost(hardware=measured).seconds([Lanes(2, 3)])
    assert seconds.linear == pytest.approx(240 * 0.015)
    assert seconds.attention == pytest.approx(5 * 8 / 50)
    assert seconds.launch == pytest.approx(3 + 2)
    assert [seconds_per_byte(points, rows) for rows in (0.5, 1, 9, 18)] == pytest.approx([0.01, 0.01, 0.08, 0.16])


machines = st.builds(
    lambda bandwidth, rate, share, launch, overlaps: replace(
        SLOW,
        bytes_per_second=bandwidth,
        operations_per_second={"bfloat16": rate},
        bandwidth_share=share,
        kernel_seconds={"eager": launch},
        overlaps_launch=overlaps,
    ),
    st.floats(1e9, 1e13),
    st.floats(1e10, 1e16),
    st.floats(0.1, 1),
    st.floats(0, 1e-4),
    st.booleans(),
)
shapes = st.sampled_from(
    [
        LARGE,
        replace(LARGE, windows=(1024, None) * 16),
        replace(LARGE, expert_parameters=40_000_000_000, experts=64, experts_taken=6),
    ]
)
lanes = st.lists(
    st.builds(Lanes, st.integers(1, 64), st.integers(0, 20_000), st.integers(1, 64)), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(machines, shapes, lanes, st.floats(1, 100))
def test_more_bandwidth_or_arithmetic_is_never_slower(machine, shape, work, factor):
    before = cost(shape, machine).seconds(work).total
    faster = replace(machine, bytes_per_second=machine.bytes_per_second * factor)
    assert cost(shape, faster).seconds(work).total <= before
    faster = replace(machine, operations_per_second={"bfloat16": machine.operations_per_second["bfloat16"] * factor})
    assert cost(shape, faster).seconds(work).total <= before


@settings(max_examples=60, deadline=None)
@given(machines, shapes, lanes, st.integers(1, 64), st.integers(0, 5000))
def test_more_rows_longer_contexts_and_more_lanes_are_never_faster(machine, shape, work, more, longer):
    before = cost(shape, machine).seconds(work).total * (1 - 1e-12)
    first, *rest = work
    for larger in (
        replace(first, rows=first.rows + more),
        replace(first, context=first.context + longer),
        replace(first, count=first.count + more),
    ):
        assert cost(shape, machine).seconds([larger, *rest]).total >= before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "magic"}, "no engine is named 'magic'; there are eager, compiled"),
        ({"devices": 0}, "at least 1 device, got 0"),
        ({"devices": 2}, "1 heads of one layer cannot be shared by 2"),
        ({"hardware": replace(SLOW, link=None), "devices": 2}, "slow has no link"),
        ({"hardware": replace(SLOW, kernel_seconds={"compiled": 0.0})}, "known for engine compiled, not 'eager'"),
        ({"hardware": replace(SLOW, operations_per_second={"float16": 1.0})}, "rates for float16, not for bfloat16"),
        (
            {"hardware": replace(SLOW, measured=Measured("float32", (LinearPoint(1, 1.0),), 1, 1, 1, 0, 0))},
            "measured in float32, not in bfloat16",
        ),
    ],
)
def test_what_does_not_fit_is_said(options, said):
    with pytest.raises(ValueError, match=said):
        cost(**options)
