"""What a table of batches says in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from branchwise.plan.batches import Planner
from branchwise.plan.forward_cost import ForwardCost
from branchwise.plan.hardware import read_hardware
from branchwise.plan.model_shape import ModelShape
from branchwise.plan.report import batch_lines
from branchwise.plan.step_cost import StepModel
from plan_rig import HALVES, LARGE, SLOW, steps

pytestmark = pytest.mark.core

#: most of its weights are experts, of which a token takes one in sixteen
EXPERTS = replace(
    LARGE, matrix_parameters=900_000_000, expert_parameters=29_000_000_000, experts=128, experts_taken=8, layers=32
)


def said(shape: ModelShape, batches: list[int], context: int = 256, machine: str = "h100") -> str:
    cost = ForwardCost(shape, read_hardware(machine), "bfloat16", "compiled")
    planner = Planner(StepModel(cost, HALVES), context)
    plans = [planner.plan(batch) for batch in batches]
    return "\n".join(batch_lines(planner, plans, planner.crossover(batches)))


def test_where_trees_pay():
    assert "Trees pay below 2" in said(LARGE, [1, 512])  # some two hundred lanes
    assert "Trees still pay at 8 lanes." in said(LARGE, [1, 8])
    assert "Trees do not pay from 400 lanes on" in said(LARGE, [400, 512])


def test_few_rows_of_experts_bring_their_own():
    assert "Trees still pay at 64 lanes. They do not pay at 1, 2." in said(EXPERTS, [1, 2, 64])


def test_what_fits():
    text = said(LARGE, [1, 512], context=8192)
    assert "does not fit" in text and "Weights take 16.1 of 72.0 GB" in text and "at most 52 lanes fit" in text
    planner = Planner(steps(hardware=replace(SLOW, memory_bytes=200)), 1)
    lines = "\n".join(batch_lines(planner, [planner.plan(1)], None))
    assert "not one lane fits. Use more devices." in lines
