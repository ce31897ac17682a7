"""A measured cost table in words, numbers and a picture, with the best static trees for several chances of acceptance.

Knows a finished table; measuring is the business of `tune`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..tune.cost_table import CostTable
from ..tune.static_choice import StaticChoice, best_static, growing_shapes

#: chance that the best candidate at a node is right; each further one is right half as often where those before failed
LEVELS = (0.3, 0.5, 0.7, 0.9)
RANKS = 6
#: colours that the colour-blind tell apart (Okabe and Ito 2008), and marks for those who print in grey
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")

Table = tuple[str, list[str], list[list[str]]]


def acceptance_at(level: float) -> tuple[float, ...]:
    """The acceptance vector of a level."""
    return tuple(level / 2**rank for rank in range(RANKS))


def choices(table: CostTable, context: int) -> dict[float, StaticChoice]:
    """The best static tree of every level."""
    largest = max(table.columns[-1].nodes)
    seconds = partial(table.seconds, context=context)
    return {level: best_static(acceptance_at(level), seconds, largest) for level in LEVELS}


def cost_tables(table: CostTable) -> list[Table]:
    """What `report.print_tables` prints: milliseconds, and multiples of one node, by nodes and context."""
    nodes = sorted({count for column in table.columns for count in column.nodes})
    heading = ["nodes", *(f"context {context}" for context in table.contexts)]
    times, ratios = [], []
    for count in nodes:
        at = [table.seconds(count, context) for context in table.contexts]
        times.append([str(count), *(f"{1e3 * seconds:.2f}" for seconds in at)])
        pairs = zip(at, table.contexts, strict=True)
        ratios.append([str(count), *(f"{seconds / table.seconds(1, context):.2f}" for seconds, context in pairs)])
    return [("milliseconds of a forward", heading, times), ("multiples of one token", heading, ratios)]


def choice_table(table: CostTable) -> Table:
    """The best static trees: nodes, depth and width, tokens per step and the promised speedup."""
    rows = []
    for context in table.contexts:
        for level, choice in choices(table, context).items():
            rows.append(
                [
                    f"{level:.1f}",
                    str(context),
                    str(choice.budget),
                    str(choice.shape.height),
                    str(max(choice.shape.widths)),
                    f"{choice.tokens_per_step:.2f}",
                    f"{choice.speedup:.2f}",
                ]
            )
    heading = ["best candidate right", "context", "nodes", "depth", "width", "tokens/step", "x plain"]
    return ("best static trees (a drafter's own time not counted)", heading, rows)


def choice_records(table: CostTable) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [
        {
            "level": level,
            "acceptance": list(acceptance_at(level)),
            "context": context,
            "nodes": choice.budget,
            "depth": choice.shape.height,
            "width": max(choice.shape.widths),
            "tokens_per_step": round(choice.tokens_per_step, 4),
            "speedup": round(choice.speedup, 4),
        }
        for context in table.contexts
        for level, choice in choices(table, context).items()
    ]


def plot_cost(table: CostTable, facts: Mapping[str, Any], path: Path) -> None:
    """Cost against nodes for every context, and promised speedup against nodes with the chosen budgets marked.

    Args:
        table: what was measured.
        facts: its key; the engine, number type and threads stand in the title.
        path: where the picture goes; needs matplotlib (extra ``plot``).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for column, colour, mark in zip(table.columns, _around(COLOURS, table), _around(MARKS, table), strict=True):
        times = [1e3 * seconds for seconds in column.at(column.nodes)]
        left.plot(column.nodes, times, color=colour, marker=mark, label=f"context {column.context}")
    left.set(xlabel="nodes in the tree, root included", ylabel="time of a forward [ms]", title="cost", ylim=(0, None))
    context = table.contexts[0]
    _plot_speedup(right, table, context)
    title = f"choice at context {context} (stars)"
    right.set(xlabel="nodes in the tree, root included", ylabel="speedup over plain decoding [x]", title=title)
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(f"{facts['engine']}, {facts['dtype']}, {facts['threads']} threads, {facts['cpu']}", fontsize=9)
    figure.savefig(path, dpi=120, metadata={"Title": path.name} if path.suffix == ".png" else None)


def _plot_speedup(axis: Any, table: CostTable, context: int) -> None:
    largest = max(table.columns[0].nodes)
    plain = table.seconds(1, context)
    for (level, choice), colour in zip(choices(table, context).items(), COLOURS, strict=False):
        tokens = [1.0]
        for chance in growing_shapes(acceptance_at(level), largest)[1]:
            tokens.append(tokens[-1] + chance)
        times = table.profile(range(1, len(tokens) + 1), context)
        speedups = [count * plain / seconds for count, seconds in zip(tokens, times, strict=True)]
        axis.plot(range(1, len(tokens) + 1), speedups, color=colour, label=f"best candidate right: {level:.0%}")
        axis.plot(choice.budget, choice.speedup, marker="*", markersize=14, color=colour)
    axis.axhline(1.0, color="grey", linewidth=1, linestyle=":")


def _around(kinds: Sequence[str], table: CostTable) -> list[str]:
    return [kinds[index % len(kinds)] for index in range(len(table.columns))]
