"""What tests of planning share: a model and a machine with easy numbers, and plans on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from branchwise.plan.acceptance import Acceptance, from_chances
from branchwise.plan.forward_cost import ForwardCost
from branchwise.plan.hardware import Hardware, Link
from branchwise.plan.model_shape import ModelShape
from branchwise.plan.step_cost import StepModel

#: one layer of one head: 16 of its 100 weights are attention's, so that the feed-forward part is 14 wide
ONE_LAYER = ModelShape(
    name="one layer",
    layers=1,
    hidden=2,
    vocabulary=10,
    heads=1,
    kv_heads=1,
    key_width=2,
    value_width=2,
    windows=(None,),
    matrix_parameters=100,
    vector_parameters=0,
    expert_parameters=0,
    experts=1,
    experts_taken=1,
    head_parameters=20,
    embedding_parameters=0,
)
#: 8 billion parameters, as Llama 3.1 has them
LARGE = ModelShape(
    name="large",
    layers=32,
    hidden=4096,
    vocabulary=128256,
    heads=32,
    kv_heads=8,
    key_width=128,
    value_width=128,
    windows=(None,) * 32,
    matrix_parameters=6_979_321_856,
    vector_parameters=266_240,
    expert_parameters=0,
    experts=1,
    experts_taken=1,
    head_parameters=525_336_576,
    embedding_parameters=525_336_576,
)
#: reads 100 bytes and does 1,000 operations per second
SLOW = Hardware(
    name="slow",
    memory_bytes=1e6,
    bytes_per_second=100.0,
    operations_per_second={"bfloat16": 1000.0},
    bandwidth_share=1.0,
    arithmetic_share=1.0,
    kernel_seconds={"eager": 0.01, "compiled": 0.0},
    overlaps_launch=False,
    link=Link(10.0, 0.5),
    sources=("made up",),
)
#: nothing takes time but starting a forward: exactly one second
TICKING = replace(
    SLOW,
    name="ticking",
    memory_bytes=1e12,
    bytes_per_second=1e15,
    operations_per_second={"bfloat16": 1e15},
    kernel_seconds={"eager": 1 / 68},
    overlaps_launch=True,
)
HALVES = from_chances("halves", [[0.5, 0.25]] * 6, 17)


def cost(shape: ModelShape = ONE_LAYER, hardware: Hardware = SLOW, **options: Any) -> ForwardCost:
    return ForwardCost(shape, hardware, "bfloat16", options.pop("engine", "eager"), **options)


def steps(
    shape: ModelShape = ONE_LAYER, hardware: Hardware = TICKING, acceptance: Acceptance = HALVES, **options: Any
) -> StepModel:
    return StepModel(cost(shape, hardware), acceptance, **options)
