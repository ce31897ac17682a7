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
PLAIN_WIDTH = 120


def print_comparison(record: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Prints the methods side by side, then one line per claim."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"

    def text(words: str, style: str = "") -> Text:
        # a stream that cannot hold a mark gets a question mark
        return Text(words.encode(encoding, "replace").decode(encoding), style=style)

    console = Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)
    console.print(text(", ".join(configuration(record))))
    heading, rows = side_rows(record)
    side = Table(title="Chain and tree at the same budget", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(heading):
        # as words, since a narrow terminal breaks lines between words and cuts what has none
        side.add_column(name.replace("/", " per "), justify="right" if index else "left", no_wrap=not index)
    for row in rows:
        side.add_row(*map(text, row))
    console.print(side)
    claims = Table(title="Claims", title_justify="left", box=box.SIMPLE_HEAD, show_lines=False, padding=(0, 1, 1, 1))
    claims.add_column("claim", ratio=2)
    claims.add_column("verdict", no_wrap=True)
    claims.add_column("measured", ratio=4)
    for entry in record["rows"]:
        name = status(entry)
        verdict = text(f"{MARKS[name]} {name}", STYLES[name])
        claims.add_row(text(entry["topic"]), verdict, text(_measured(entry)))
    console.print(claims)


def _measured(row: Mapping[str, Any]) -> str:
    """The headline; where the verdict is not the expected one, also which numbers are to blame."""
    if row["as_expected"] or row["reason"] is not None:
        return str(row["headline"])
    blame = [c for c in row["checks"] if not c["holds"] and (c["group"] == "instead" or row["expected"] == "confirmed")]
    told = blame or [check for check in row["checks"] if check["group"] == "says"]
    said = "; ".join(f"{'holds' if c['holds'] else 'does not hold'}: {c['states']} ({c['measured']})" for c in told)
    return f"{row['headline']} Expected {row['expected']}, found {row['verdict']}. {said}"
