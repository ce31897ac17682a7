"""An evaluation on paper: tables for people, JSON and a plot beside the head. Knows the figures of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .disk import write_json, write_whole
from .evaluate import Evaluation

JSON_FILE = "evaluation.json"
PLOT_FILE = "evaluation.png"
#: depths that are shown
DEPTHS = 8


def table(evaluation: Evaluation) -> Iterator[str]:
    """Lines: one per setting, by category, what the vocabulary covers, and acceptance by depth and rank."""
    settings = evaluation.settings
    yield f"{'setting':<10}{'tokens/step':>12}{'tokens/s':>10}{'x hf-plain':>11}{'drafting':>10}{'equal':>9}"
    for name, figures in settings.items():
        drafting = f"{figures['draft_of_forward']:.0%}" if "draft_of_forward" in figures else "-"
        yield (
            f"{name:<10}{figures['tokens_per_step']:>12.2f}{figures['tokens_per_second']:>10.1f}"
            f"{_ratio(figures, settings['hf-plain']):>11.2f}{drafting:>10}{figures['equal']:>6}/{figures['prompts']}"
        )
    yield "drafting: its time as a share of the target's forwards'; equal: outputs that are plain decoding's"
    yield from _by_category(settings)
    yield ""
    shares = ", ".join(f"{group or 'all'} {share:.2%}" for group, share in evaluation.coverage.items())
    yield f"tokens the target wrote that the head can draft: {shares}"
    yield ""
    yield "accepted by depth, given that the depth before was (chain: the first choice; trees: any child)"
    for name, figures in settings.items():
        if figures["depths"]:
            yield f"{name:<10}" + "".join(f"{row['accepted']:>7.3f}" for row in figures["depths"][:DEPTHS])
    largest = [name for name in settings if name.startswith("tree-")][-1]
    yield ""
    yield f"{largest}: share accepted at child rank 1, 2, ... (last column: later ones)"
    for row in settings[largest]["depths"][:DEPTHS]:
        yield f"depth {row['depth']:<4}" + "".join(f"{share:>7.3f}" for share in row["by_rank"])


def _by_category(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    categories = list(settings["plain"]["categories"])
    if not categories:
        return
    widths = [max(8, len(category) + 2) for category in categories]
    heads = "".join(f"{category:>{width}}" for category, width in zip(categories, widths, strict=True))
    base = settings["hf-plain"]["categories"]
    for title, cell in (
        ("tokens/step", lambda figures, category: figures["tokens_per_step"]),
        ("x hf-plain", lambda figures, category: _ratio(figures, base[category])),
    ):
        yield ""
        yield f"{title:<12}{heads}"
        for name, figures in settings.items():
            cells = [cell(figures["categories"][category], category) for category in categories]
            yield f"{name:<12}" + "".join(f"{value:>{width}.2f}" for value, width in zip(cells, widths, strict=True))


def _ratio(figures: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    return figures["tokens_per_second"] / base["tokens_per_second"] if base["tokens_per_second"] else 0.0


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
                [row["depth"] for row in figures["depths"][:DEPTHS]],
                [row["accepted"] for row in figures["depths"][:DEPTHS]],
                marker="o",
                label=name,
            )
    left.set(xlabel="depth", ylabel="accepted, given the depth before", ylim=(0, 1))
    left.legend()
    names = list(settings)
    right.barh(names[::-1], [settings[name]["tokens_per_step"] for name in reversed(names)])
    right.set(xlabel="tokens per step")
    figure.tight_layout()
    write_whole(path, lambda beside: figure.savefig(beside, format="png"), what="the plot")
    pyplot.close(figure)
    return True
