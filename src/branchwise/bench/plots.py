"""Pictures of a sweep: cost against nodes, and cost against context. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: where the other axis is held: the value nearest to these is taken
NODES, CONTEXT = 16, 8192


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
            axis.set_title(f"{kind}, {held} {at}".lstrip(", "), fontsize=9)
    # the name without a folder, so that the picture says nothing about the machine
    figure.savefig(path, metadata={"Title": path.name} if path.suffix == ".png" else None)


def _kind(row: Mapping[str, Any]) -> str:
    if "heads" not in row:
        return ""
    return f"{row['dtype']}, {row['heads']} heads on {row['kv_heads']} of width {row['dim']}"


def _draw(axis: Any, along: str, rows: Sequence[Mapping[str, Any]]) -> None:
    places = [row[along] for row in rows]
    axis.plot(places, [row["limit_ms"] for row in rows], "k--", label="limit of the machine")
    for way in rows[0]["ways"]:
        axis.plot(places, [row["ways"][way]["ms"] for row in rows], marker="o", label=way)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel(along)
    axis.set_ylabel("ms")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
