"""A comparison with peers on paper: everything in one table, categories in others, and what has no room in tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from ..report import print_tables
from .summary import MEDIAN

#: heading -> key of the figures, format
COLUMNS = {
    "prompts": ("prompts", "d"),
    "tokens/s": (MEDIAN, ".1f"),
    "x best": ("ratio_to_best", ".2f"),
    "of all": ("tokens_per_second", ".1f"),
    "tokens/step": ("tokens_per_step", ".2f"),
    "first, ms": ("median_first_run_seconds", ".0f"),
}
#: share of one processor beyond which a worker that waits is reported
IDLE_SHARE = 0.02
OWN_BUILD = "a build made here (pip install llama-cpp-python compiles one) is faster"
LEGEND = (
    "tokens/s: tokens after the first run of tokens / time from it to the last token (no prefill), median over prompts",
    "x best: tokens/s / those of branchwise's best",
    "of all: the same tokens of all prompts / the time of all",
    "first: time to the first run of tokens (prefill), median over prompts",
    "equal: outputs equal to the same peer's own plain output",
)


def print_peers(record: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Prints everything."""
    stream = stream or sys.stdout
    print_tables(tables(record), stream)
    for line in notes(record):
        print(line, file=stream)


def tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, heading and rows of each."""
    methods = record["methods"]
    rows = []
    for name, method in methods.items():
        values, weights = method["overall"], record["peers"][method["peer"]].get("weights", "-")
        cells = [_cell(values, key, form) for key, form in COLUMNS.values()]
        equal = f"{values['equal']}/{values['compared']}" if values and "equal" in values else "-"
        rows.append([f"{name} (FAILED)" if method["error"] else name, weights, *cells, equal])
    yield "beside other engines", ["configuration", "weights", *COLUMNS, "equal"], rows
    categories = list(dict.fromkeys(category for method in methods.values() for category in method["categories"]))
    if len(categories) > 1:
        for title, key, form in (("tokens/s", MEDIAN, ".1f"), ("x best", "ratio_to_best", ".2f")):
            by_category = [
                [name, *(_cell(method["categories"].get(category), key, form) for category in categories)]
                for name, method in methods.items()
            ]
            yield f"{title} by category", ["configuration", *categories], by_category


def _cell(figures: Mapping[str, Any] | None, key: str, form: str) -> str:
    value = figures.get(key) if figures else None
    if value is None:
        return "-"
    return format(value * 1000 if key.endswith("seconds") and form == ".0f" else value, form)


def notes(record: Mapping[str, Any]) -> Iterator[str]:
    """The verdict, the legend, failures, and what may have disturbed the measurement."""
    best, peer, methods = record["best"], record["fastest_peer"], record["methods"]
    for title, name in (("branchwise's best", best), ("fastest peer", peer)):
        if name is not None:
            yield f"{title}: {name}, {methods[name]['overall'][MEDIAN]:.1f} tokens/s"
    if best is not None and peer is not None and methods[peer]["overall"][MEDIAN]:
        ratio = methods[best]["overall"][MEDIAN] / methods[peer]["overall"][MEDIAN]
        yield f"branchwise's best / fastest peer: {ratio:.2f}"
    yield from LEGEND
    for name, method in methods.items():
        if method["error"]:
            yield f"{name} failed: {method['error']}"
    for name, facts in record["peers"].items():
        if (facts.get("idle_cpu_share") or 0) > IDLE_SHARE:
            yield f"{name} used {facts['idle_cpu_share']:.0%} of a processor while others ran; their figures suffer"
        if facts.get("processor_has", "").startswith("AVX512") and "AVX512" not in facts["compiled_for"]:
            yield f"{name} was compiled without AVX512, which this processor has: {OWN_BUILD}"
    for question, reason in record["skipped"].items():
        yield f"prompt {question} was skipped: {reason}"
