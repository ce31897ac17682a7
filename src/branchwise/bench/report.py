"""A benchmark's result on paper: tables for people, JSON for programs. Knows the record that `cli` puts together."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

#: column heading -> key of the figures, format
COLUMNS = {
    "prompts": ("prompts", "d"),
    "tokens/s": ("tokens_per_second", ".1f"),
    "median": ("median_tokens_per_second", ".1f"),
    "tokens/step": ("tokens_per_step", ".2f"),
    "x plain": ("ratio_to_plain", ".2f"),
    "x hf-plain": ("ratio_to_hf-plain", ".2f"),
    "outside": ("outside_share", ".1%"),
    "draft": ("share_draft", ".1%"),
    "verify": ("share_verify", ".1%"),
    "commit": ("share_commit", ".1%"),
    "other": ("share_other", ".1%"),
}
#: columns of the tables per category
SHORT = ("tokens/s", "tokens/step", "x plain", "x hf-plain")


def print_report(record: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Prints the tables; drawn with rules on a terminal, as aligned columns elsewhere."""
    stream = stream or sys.stdout
    print_tables(tables(record), stream)
    for line in notes(record):
        print(line, file=stream)


def print_tables(tables: Iterable[tuple[str, list[str], list[list[str]]]], stream: TextIO) -> None:
    """Title, heading and rows of each; the first column is to the left, the others to the right."""
    if stream.isatty():
        from rich.console import Console
        from rich.table import Table

        console = Console(file=stream)
        for title, heading, rows in tables:
            table = Table(title=title, title_justify="left")
            for index, name in enumerate(heading):
                table.add_column(name, justify="right" if index else "left")
            for row in rows:
                table.add_row(*row)
            console.print(table)
    else:
        for title, heading, rows in tables:
            widths = [max(len(row[i]) for row in (heading, *rows)) for i in range(len(heading))]
            print(f"{title}:", file=stream)
            for row in (heading, *rows):
                cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
                print("  " + "  ".join(cells).rstrip(), file=stream)
            print(file=stream)


def tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, heading and rows of each table: all prompts first, then every category."""
    methods = record["methods"]
    overall = {name: method["overall"] for name, method in methods.items()}
    yield _table("all prompts", overall, list(COLUMNS), {name: method["error"] for name, method in methods.items()})
    categories = dict.fromkeys(category for method in methods.values() for category in method["categories"])
    if len(categories) > 1:
        for category in categories:
            figures = {name: method["categories"].get(category) for name, method in methods.items()}
            yield _table(category, figures, list(SHORT), {})


def _table(
    title: str, figures: Mapping[str, Any], columns: list[str], errors: Mapping[str, str | None]
) -> tuple[str, list[str], list[list[str]]]:
    present = [name for name in columns if any(f and f.get(COLUMNS[name][0]) is not None for f in figures.values())]
    rows = []
    for method, values in figures.items():
        cells = [_cell(values, *COLUMNS[name]) for name in present]
        equal = f"{values['equal']}/{values['compared']}" if values and "equal" in values else "-"
        rows.append([f"{method} (FAILED)" if errors.get(method) else method, *cells, equal])
    return title, ["method", *present, "equal"], rows


def _cell(figures: Mapping[str, Any] | None, key: str, form: str) -> str:
    value = figures.get(key) if figures else None
    return "-" if value is None else format(value, form)


def notes(record: Mapping[str, Any]) -> Iterator[str]:
    """What a table has no room for: failures, skipped prompts, differing outputs."""
    for name, method in record["methods"].items():
        if method["error"]:
            yield f"{name} failed: {method['error']}"
        measured = [d for d in method["differences"] if "gap" in d]
        ties = sum(d["near_tie"] for d in measured)
        if method["differences"]:
            yield (
                f"{name}: {len(method['differences'])} outputs differ, {ties} of {len(measured)} measured begin at a "
                "near-tie (gap of the two best logits within the rounding of a wide forward)"
            )
        for d in measured:
            if not d["near_tie"]:
                found = f"gap {d['gap']:.4g}, rounding {d['rounding']:.4g}"
                yield f"  {d['question_id']} differs at token {d['position']}: {found}"
    for question, reason in record["skipped"].items():
        yield f"prompt {question} was skipped: {reason}"


def last_line(record: Mapping[str, Any]) -> str:
    """The record without its rows, as one line of JSON."""
    return json.dumps({key: value for key, value in record.items() if key != "rows"})


def check_writable(path: Path) -> None:
    """Raises OSError now rather than after an hour of measuring."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file for the result")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; the result could not be written there")


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Writes the whole record; a reader never sees half of it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
