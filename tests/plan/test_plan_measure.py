"""This machine measured part by part, and the model's prediction beside what forwards really take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from branchwise.bench import roofline
from branchwise.plan import measure
from branchwise.plan.check import check_forwards
from branchwise.plan.forward_cost import ForwardCost, Lanes
from branchwise.plan.hardware import Hardware
from branchwise.plan.model_config import shape_of
from zoo import tiny_llama

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def machine() -> Iterator[Hardware]:
    """Measured in a moment, and so not well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("branchwise.bench.limits._READ_BYTES", 2**20)
        patch.setattr("branchwise.bench.limits._SIDES", {"cpu": (64,)})
        patch.setattr(roofline, "_ROTATED_BYTES", 2**20)
        patch.setattr(measure, "_INVENTED", measure._TINY)
        patch.setattr(measure, "_INVENTED_DEPTH", 1)
        patch.setattr(measure, "_REPEATS", 1)
        patch.setattr(measure, "_DEPTHS", (1, 2))
        patch.setattr(measure, "ROWS", (1, 4))
        yield measure.measure_hardware(torch.device("cpu"), torch.float32)


def test_a_measured_machine_is_whole_and_can_be_kept(machine):
    assert Hardware.from_dict(json.loads(json.dumps(machine.as_dict())), "kept") == machine
    assert machine.measured is not None and machine.measured.dtype == "float32"
    assert [point.rows for point in machine.measured.linear] == [1, 4]
    assert machine.memory_bytes > 2**28


def test_predictions_stand_beside_measurements(machine):
    model = tiny_llama(dtype=torch.float32)
    lines: list[str] = []
    record = check_forwards(model, machine, {"name": "tiny"}, 2, lines.append, nodes=(1, 4), contexts=(20, 9000))
    assert [(row["nodes"], row["context"]) for row in record["rows"]] == [(1, 20), (4, 20)]
    seconds = ForwardCost(shape_of(model, "tiny"), machine, "float32", "eager").seconds([Lanes(4, 20)])
    row = record["rows"][1]
    assert row["model_ms"] == pytest.approx(1000 * seconds.total, abs=1e-3)
    assert row["ratio"] == pytest.approx(row["model_ms"] / row["measured_ms"], abs=1e-3)
    assert row["parts_ms"]["launch"] == pytest.approx(1000 * seconds.launch, abs=1e-3)
    assert record["met"] == all(0.8 <= row["ratio"] <= 1.2 for row in record["rows"])
    assert any("[9000]" in line for line in lines)
    json.dumps(record)


def test_a_check_of_nothing_is_no_check(machine):
    with pytest.raises(ValueError, match=r"contexts \[9000\] do not fit the 256 positions of tiny"):
        check_forwards(tiny_llama(dtype=torch.float32), machine, {"name": "tiny"}, 1, contexts=(9000,))


def test_layers_can_be_timed_alone_where_launching_overlaps(machine, monkeypatch):
    monkeypatch.setattr(measure, "_SIDE", 32)
    alone = measure._layers_alone(torch.float32, torch.device("cpu"))
    assert len(alone) == 2 and all(seconds > 0 for seconds in alone)
    # a hiccup at few rows does not raise what more rows cost
    monkeypatch.setattr(measure, "_layers_alone", lambda dtype, device: [2.0, 1.0])
    points = measure._linear_points(replace(machine, overlaps_launch=True), torch.float32, torch.device("cpu"))
    assert [point.seconds_per_byte for point in points] == [1.0, 1.0]
