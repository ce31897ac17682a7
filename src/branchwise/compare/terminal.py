"""The record as tables for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .words import MARKS, configuration, side_rows, status

STYLES = {
    "confirmed": "green",
    "corrected": "yellow",
    "refuted": "magenta",
    "not as expected": "bold red",
    "not measured": "dim",
}
#: where nobody says how wide the output is, as in a pipe
PLAIN_WIDTH = 118


def print_comparison(record: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Prints the methods side by side, then one line per claim."""
    stream = stream or sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)
    console.print(Text(", ".join(configuration(record))))
    heading, rows = side_rows(record)
    side = Table(title="Chain and tree at the same budget", title_justify="left", box=box.SIMPLE_HEAD)
    for index, name in enumerate(heading):
        side.add_column(name, justify="right" if index else "left")
    for row in rows:
        side.add_row(*map(Text, row))
    console.print(side)
    claims = Table(title="Claims", title_justify="left", box=box.SIMPLE_HEAD, show_lines=False, padding=(0, 1, 1, 1))
    claims.add_column("claim", ratio=2)
    claims.add_column("verdict", no_wrap=True)
    claims.add_column("measured", ratio=4)
    for entry in record["rows"]:
        claims.add_row(Text(entry["topic"]), _verdict(entry), Text(_measured(entry)))
    console.print(claims)


def _verdict(row: Mapping[str, Any]) -> Text:
    name = status(row)
    return Text(f"{MARKS[name]} {name}", style=STYLES[name])


def _measured(row: Mapping[str, Any]) -> str:
    """The headline; where the verdict is not the expected one, also which numbers are to blame."""
    if row["as_expected"] or row["reason"] is not None:
        return str(row["headline"])
    blame = [c for c in row["checks"] if not c["holds"] and (c["group"] == "instead" or row["expected"] == "confirmed")]
    said = "; ".join(f"does not hold: {check['states']} ({check['measured']})" for check in blame)
    return f"{row['headline']} Expected {row['expected']}, found {row['verdict']}. {said}"
