"""Machines in files: what comes with the package, and what is wrong with a file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from branchwise.plan.hardware import Hardware, LinearPoint, Measured, machine_names, read_hardware
from plan_rig import SLOW

pytestmark = pytest.mark.core

MEASURED = replace(
    SLOW,
    link=None,
    measured=Measured("float32", (LinearPoint(1, 1e-9), LinearPoint(8, 2e-9)), 1e9, 1e9, 1e9, 1e-4, 0.0),
)


def test_what_comes_with_the_package():
    assert machine_names() == ["b200", "h100", "h200"]
    for name in machine_names():
        machine = read_hardware(name)
        assert machine.measured is None and machine.link is not None
        assert any("data sheet" in source for source in machine.sources)
        assert any("assumptions" in source for source in machine.sources)
        assert set(machine.kernel_seconds) == {"eager", "compiled"}


@pytest.mark.parametrize("machine", [SLOW, MEASURED])
def test_there_and_back(tmp_path, machine):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(machine.as_dict()), encoding="utf-8")
    assert read_hardware(str(path)) == machine


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(
        ValueError, match=r"no machine is named 'h300'; there are this, b200, h100, h200, or a \.json file"
    ):
        read_hardware("h300")
    with pytest.raises(ValueError, match=r"none\.json cannot be read as hardware"):
        read_hardware(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, '"format": "branchwise-hardware"'),
        ({"memory_bytes": 0}, "memory_bytes must be a number > 0, got 0"),
        ({"bytes_per_second": "fast"}, "bytes_per_second must be a number > 0, got 'fast'"),
        ({"bandwidth_share": 1.5}, "bandwidth_share must be a number > 0 and <= 1, got 1.5"),
        ({"operations_per_second": {}}, "operations_per_second is empty"),
        ({"operations_per_second": {"bfloat16": True}}, "bfloat16 must be a number > 0, got True"),
        ({"kernel_seconds": {}}, "names no engine; there are eager, compiled"),
        ({"kernel_seconds": {"eager": 0, "magic": 0}}, "nobody reads: magic"),
        ({"overlaps_launch": 1}, "overlaps_launch must be true or false, got 1"),
        ({"link": {"seconds": 0}}, "link has no 'bytes_per_second'"),
        ({"sources": []}, "sources must be a list with something in it"),
        ({"name": ""}, "name must be a text"),
        ({"bandwith": 1}, "nobody reads: bandwith"),
        ({"measured": {**MEASURED.as_dict()["measured"], "linear": [{"rows": 1.5, "seconds_per_byte": 1}]}}, "whole"),
        (
            {
                "measured": {
                    **MEASURED.as_dict()["measured"],
                    "linear": [{"rows": 1, "seconds_per_byte": 2}, {"rows": 8, "seconds_per_byte": 1}],
                }
            },
            r"linear\[1\]: rows must rise",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(change, said):
    with pytest.raises(ValueError, match=said):
        Hardware.from_dict({**SLOW.as_dict(), **change}, "machine.json")


def test_what_is_missing_is_named():
    record = SLOW.as_dict()
    del record["memory_bytes"]
    with pytest.raises(ValueError, match=r"machine\.json has no 'memory_bytes'"):
        Hardware.from_dict(record, "machine.json")
    with pytest.raises(ValueError, match="must be a JSON object, got list"):
        Hardware.from_dict([], "machine.json")
