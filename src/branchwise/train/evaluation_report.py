"""An evaluation on paper: tables for people, JSON and a plot beside the head. Knows the figures of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .disk import write_json, write_whole

JSON_FILE = "evaluation.json"
PLOT_FILE = "evaluation.png"


def table(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Lines: one per setting, then acceptance by depth and rank of the largest tree."""
    plain = settings["plain"]["tokens_per_second"]
    yield f"{'setting':<10}{'tokens/step':>12}{'tokens/s':>10}{'x plain':>9}{'forward':>9}{'equal':>9}"
    for name, figures in settings.items():
        ratio = figures["tokens_per_second"] / plain if plain else 0.0
        yield (
            f"{name:<10}{figures['tokens_per_step']:>12.2f}{figures['tokens_per_second']:>10.1f}{ratio:>9.2f}"
            f"{figures['forward_share']:>9.0%}{figures['equal']:>6}/{figures['prompts']}"
        )
    yield ""
    yield "accepted by depth, given that the depth before was (chain: the first choice; trees: any child)"
    for name, figures in settings.items():
        if figures["depths"]:
            yield f"{name:<10}" + "".join(f"{row['accepted']:>7.3f}" for row in figures["depths"])
    largest = list(settings)[-1]
    yield ""
    yield f"{largest}: share accepted at child rank 1, 2, ... (last column: later ones)"
    for row in settings[largest]["depths"]:
        yield f"depth {row['depth']:<4}" + "".join(f"{share:>7.3f}" for share in row["by_rank"])


def write_report(folder: Path, record: Mapping[str, Any]) -> list[Path]:
    """Writes the JSON and, where matplotlib is there, the plot; returns what was written."""
    write_json(folder / JSON_FILE, record, what="the evaluation")
    written = [folder / JSON_FILE]
    if _plot(folder / PLOT_FILE, record["settings"]):
        written.append(folder / PLOT_FILE)
    return written


def _plot(path: Path, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for name, figures in settings.items():
        if figures["depths"]:
            left.plot(
                [row["depth"] for row in figures["depths"]],
                [row["accepted"] for row in figures["depths"]],
                marker="o",
                label=name,
            )
    left.set(xlabel="depth", ylabel="accepted, given the depth before", ylim=(0, 1))
    left.legend()
    names = list(settings)
    right.bar(names, [settings[name]["tokens_per_step"] for name in names])
    right.set(ylabel="tokens per step")
    figure.tight_layout()
    write_whole(path, lambda beside: figure.savefig(beside, format="png"), what="the plot")
    pyplot.close(figure)
    return True
