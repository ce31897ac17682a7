"""A bar per configuration, coloured by peer. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..plots import COLOURS
from .summary import MEDIAN


def plot_peers(record: Mapping[str, Any], path: Path) -> None:
    """Tokens per second, median over prompts, written to ``path``; what failed keeps its place and says so."""
    from matplotlib.figure import Figure

    methods = record["methods"]
    families = list(dict.fromkeys(method["peer"].partition("/")[0] for method in methods.values()))
    names = [_label(name, method, record) for name, method in methods.items()]
    heights = [(method["overall"] or {}).get(MEDIAN, 0) for method in methods.values()]
    colours = [COLOURS[families.index(method["peer"].partition("/")[0]) % len(COLOURS)] for method in methods.values()]
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(methods)), layout="constrained")
    axis = figure.subplots()
    bars = axis.barh(range(len(names)), heights, color=colours)
    shown = [
        "failed" if method["error"] else f"{height:.0f}"
        for height, method in zip(heights, methods.values(), strict=True)
    ]
    axis.bar_label(bars, shown, padding=3, fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.08)
    axis.set_xlabel("tokens per second, median over prompts, prefill not counted")
    axis.set_title(_title(record), fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, metadata={"Title": path.name} if path.suffix == ".png" else None)


def _label(name: str, method: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    weights = record["peers"][method["peer"]].get("weights")
    return name if weights is None or method["peer"].endswith(f"/{weights}") else f"{name} ({weights})"


def _title(record: Mapping[str, Any]) -> str:
    facts, settings = record["provenance"], record["settings"]
    return (
        f"{facts['model']['name']}, {settings['prompts']} prompts, {settings['max_new_tokens']} tokens, temperature "
        f"{settings['temperature']:g}, {settings['threads']} threads, {facts['cpu']}"
    )
