"""Pictures of what was measured. Needs matplotlib (extra ``plot``).

Of a sweep: cost against nodes, and cost against context. Of methods: tokens per step and speed by category, acceptance
by depth and by rank among siblings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: where the other axis is held: the value nearest to these is taken
NODES, CONTEXT = 16, 8192
#: colours that people who see colours differently tell apart (Okabe and Ito 2008)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = "os^Dv*x"


def check_plotting() -> None:
    """Raises now rather than after the measurement.

    Raises:
        ImportError: matplotlib is missing; names the extra.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("--plot needs the package matplotlib: pip install 'branchwise[plot]'") from None


def plot_sweep(record: Mapping[str, Any], path: Path) -> None:
    """One row of two pictures per kind of call (dtype and heads; a forward has one kind), written to ``path``."""
    from matplotlib.figure import Figure

    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in record["rows"]:
        kinds.setdefault(_kind(row), []).append(row)
    figure = Figure(figsize=(11, 3.4 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), 2, squeeze=False)
    for (kind, rows), pair in zip(kinds.items(), axes, strict=True):
        for axis, along, held, wanted in ((pair[0], "nodes", "context", CONTEXT), (pair[1], "context", "nodes", NODES)):
            at = min({row[held] for row in rows}, key=lambda value: abs(value - wanted))
            _draw(axis, along, sorted((row for row in rows if row[held] == at), key=lambda row: row[along]))
            at_what = f"{at} nodes" if held == "nodes" else f"{at} committed tokens"
            axis.set_title(f"{kind}, {at_what}".lstrip(", "), fontsize=9)
    # the name without a folder, so that the picture says nothing about the machine
    figure.savefig(path, metadata={"Title": path.name} if path.suffix == ".png" else None)


def _kind(row: Mapping[str, Any]) -> str:
    if "heads" not in row:
        return ""
    return f"{row['dtype']}, {row['heads']} heads on {row['kv_heads']} of width {row['dim']}"


def _draw(axis: Any, along: str, rows: Sequence[Mapping[str, Any]]) -> None:
    places = [row[along] for row in rows]
    axis.plot(places, [row["limit_ms"] for row in rows], "k--", label="limit of the machine")
    for number, way in enumerate(rows[0]["ways"]):
        look = {"marker": MARKS[number % len(MARKS)], "color": COLOURS[number % len(COLOURS)]}
        axis.plot(places, [row["ways"][way]["ms"] for row in rows], label=way, **look)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel({"nodes": "nodes of the tree", "context": "committed tokens"}[along])
    axis.set_ylabel("milliseconds")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def plot_methods(record: Mapping[str, Any], path: Path) -> None:
    """Four pictures of a benchmark of methods, written to ``path``; methods that failed are left out."""
    from matplotlib.figure import Figure

    methods = {name: method for name, method in record["methods"].items() if method["overall"] is not None}
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    _draw_categories(axes[0][0], methods, "tokens_per_step", "tokens per step")
    _draw_categories(axes[0][1], methods, "median_tokens_per_second", "tokens per second, median over prompts")
    _draw_acceptance(axes[1][0], methods, "depth", "depth below the root")
    _draw_acceptance(axes[1][1], methods, "rank", "rank among siblings, 1 is the first drafted")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Title": path.name} if path.suffix == ".png" else None)


def _draw_categories(axis: Any, methods: Mapping[str, Any], figure: str, label: str) -> None:
    """Grouped bars: one group per category, one bar per method."""
    categories = list(dict.fromkeys(name for method in methods.values() for name in method["categories"]))
    width = 0.8 / max(1, len(methods))
    for number, (name, method) in enumerate(methods.items()):
        heights = [(method["categories"].get(category) or {}).get(figure, 0) for category in categories]
        places = [place + (number - (len(methods) - 1) / 2) * width for place in range(len(categories))]
        axis.bar(places, heights, width, label=name, color=COLOURS[number % len(COLOURS)], edgecolor="white")
    axis.set_xticks(range(len(categories)), [category.replace("_", " ") for category in categories], fontsize=8)
    axis.set_ylabel(label)
    axis.grid(axis="y", alpha=0.3)


def _draw_acceptance(axis: Any, methods: Mapping[str, Any], key: str, label: str) -> None:
    """A line per method that drafts, as long as something was drafted."""
    for number, method in enumerate(methods.values()):
        counts = method["acceptance"][key]
        if counts:
            shares = [one["accepted"] / one["of"] for one in counts]
            look = {"marker": MARKS[number % len(MARKS)], "color": COLOURS[number % len(COLOURS)]}
            axis.plot(range(1, len(shares) + 1), shares, **look)
    axis.set(xlabel=label, ylabel="share accepted", ylim=(0, 1))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
