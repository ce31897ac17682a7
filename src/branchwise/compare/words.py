"""The record in words that terminal and page share: verdicts and their marks, model, machine, methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: as a reader sees a verdict -> its mark, for those who do not see colours
MARKS = {"confirmed": "✓", "corrected": "≈", "refuted": "✗", "not as expected": "!", "not measured": "?"}
PARTS = {"draft": "draft", "forward": "forward", "verify": "rule", "commit": "commit", "other": "rest"}


def status(row: Mapping[str, Any]) -> str:
    """A row's verdict, or that it is not the expected one, or that there is none."""
    if row["reason"] is not None:
        return "not measured"
    return str(row["verdict"]) if row["as_expected"] else "not as expected"


def configuration(record: Mapping[str, Any]) -> list[str]:
    """The model and the machine, a few words each."""
    origin = record["provenance"]
    model = origin["model"]
    return [
        f"model {model['name']} ({model['architecture']})",
        f"dtype {model['dtype']}",
        f"device {origin['device']}" if origin["device"] != "cpu" else f"CPU {origin['cpu'] or 'unknown'}",
        f"{origin['threads']} thread{'' if origin['threads'] == 1 else 's'}",
        f"{record['effort']['name']} run of {record['seconds']:.0f} s",
        f"{origin['date_utc'][:16].replace('T', ' ')} UTC",
    ]


def machine(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything that is known about where the numbers come from."""
    origin = record["provenance"]
    commit = origin["commit"]
    model = ", ".join(f"{name} {value}" for name, value in origin["model"].items() if value is not None)
    return [
        ("Command", str(origin["command"])),
        ("Date", str(origin["date_utc"])),
        ("Model", model),
        ("Device", str(origin["device"])),
        ("Processor", f"{origin['cpu']}, {origin['logical_cpus']} logical"),
        ("Threads", str(origin["threads"])),
        ("Load average before the end", str(origin["load_average"])),
        ("Versions", ", ".join(f"{name} {version}" for name, version in origin["versions"].items())),
        ("Code", "no checkout" if commit is None else f"{commit['id']}{' with changes' if commit['dirty'] else ''}"),
        ("Sizes", ", ".join(f"{name} {value}" for name, value in record["effort"].items())),
    ]


def side_rows(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of plain decoding, chains and trees side by side."""
    heading = ["method", "forwards", "nodes/step", "tokens/step", "tokens/s", "x plain", *PARTS.values(), "equal"]
    rows = [
        [
            one["label"],
            f"{one['steps_per_prompt']:.0f}",
            f"{one['nodes_per_step']:.1f}",
            f"{one['tokens_per_step']:.2f}",
            f"{one['tokens_per_second']:.1f}",
            f"{one['x_plain']:.2f}",
            *(f"{100 * one['shares'][part]:.1f} %" for part in PARTS),
            f"{one['equal_prompts']}/{one['prompts']}",
        ]
        for one in record["side_by_side"]
    ]
    return heading, rows
