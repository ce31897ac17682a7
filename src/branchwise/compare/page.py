"""The record as one HTML page without outside assets. Knows records, not how they came about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from ..show.svg import mask_svg, tree_svg
from .charts import axis_text, chart_svg, short
from .phrases import counted
from .words import MARKS, configuration, machine, side_rows, status

TITLE = "Tree attention, claim by claim"


def page(record: Mapping[str, Any]) -> str:
    """The whole document."""
    rows: Sequence[Mapping[str, Any]] = record["rows"]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            # nothing is fetched; browsers ask for an icon unless there is one
            '<link rel="icon" href="data:,">',
            f"<title>{TITLE} — {escape(str(record['provenance']['model']['name']))}</title>",
            f"<style>{_asset('page.css')}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#claims">To the claims</a>',
            _header(record),
            '<main id="top">',
            _overview(rows),
            _side_by_side(record),
            '<section id="claims" aria-label="The claims">',
            *(_claim(number, row) for number, row in enumerate(rows, start=1)),
            "</section>",
            _provenance(record),
            "</main>",
            f"<script>{_asset('page.js')}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _header(record: Mapping[str, Any]) -> str:
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in configuration(record))
    return (
        f"<header><h1>{TITLE}</h1>"
        "<p>What is said about tree attention in speculative decoding, each claim beside the measurement that settles "
        f"it, made on one model and one machine.</p><ul class='facts'>{facts}</ul></header>"
    )


def _badge(row: Mapping[str, Any]) -> str:
    name = status(row)
    return f'<span class="badge {name.replace(" ", "-")}"><span aria-hidden="true">{MARKS[name]}</span> {name}</span>'


def _overview(rows: Sequence[Mapping[str, Any]]) -> str:
    counted = {name: sum(status(row) == name for row in rows) for name in MARKS}
    buttons = "".join(
        f'<button type="button" data-show="{name.replace(" ", "-")}" aria-pressed="false">'
        f'<span aria-hidden="true">{MARKS[name]}</span> {name} <b>{count}</b></button>'
        for name, count in counted.items()
        if count
    )
    items = "".join(
        f'<li class="{status(row).replace(" ", "-")}"><a href="#{row["key"]}">{escape(row["topic"])}</a> {_badge(row)}'
        f"<p>{escape(row['headline'])}</p></li>"
        for row in rows
    )
    return (
        '<section class="overview" aria-labelledby="overview"><h2 id="overview">Verdicts</h2>'
        f'<div class="filters" role="group" aria-label="Show only">'
        f'<button type="button" data-show="all" aria-pressed="true">all <b>{len(rows)}</b></button>{buttons}'
        '<span class="hint"><kbd>j</kbd> next claim, <kbd>k</kbd> previous</span></div>'
        f"<ol>{items}</ol></section>"
    )


def _side_by_side(record: Mapping[str, Any]) -> str:
    heading, rows = side_rows(record)
    plain = record["side_by_side"][0]
    note = (
        f"{record['new_tokens']} new tokens per prompt, {counted(plain['prompts'], 'prompt')}, greedy. Chain and tree "
        "draft with the same drafter (n-grams and recycled tokens) under the same budget of nodes; the shape "
        "alone differs. Equal: prompts whose tokens are those of plain decoding; in half precision near-ties may fall "
        "either way."
    )
    chart = {
        "kind": "bars",
        "title": "Tokens per step",
        "axis": {"label": "tokens per step", "unit": ""},
        "parts": ["tokens per step"],
        "bars": [[one["label"], [one["tokens_per_step"]]] for one in record["side_by_side"]],
    }
    return (
        '<section class="side" aria-labelledby="side"><h2 id="side">Chain and tree at the same budget</h2>'
        f'<div class="scroll">{_table(heading, rows)}</div><p class="how">{escape(note)}</p>'
        f'<div class="exhibits">{_figure(chart)}</div></section>'
    )


def _claim(number: int, row: Mapping[str, Any]) -> str:
    name = status(row)
    expected = (
        f'<p class="unexpected">Expected was “{row["expected"]}”; the numbers say “{row["verdict"]}”.</p>'
        if not row["as_expected"]
        else ""
    )
    body = f'<p class="headline">{escape(row["headline"])}</p>{expected}'
    if row["reason"] is None:
        body += _checks(row) + _exhibits(row["exhibits"])
        body += f'<p class="how"><b>How it was measured.</b> {escape(row["how"])} Took {row["seconds"]:.1f} s.</p>'
    return (
        f'<article id="{row["key"]}" class="{name.replace(" ", "-")}" tabindex="-1" aria-labelledby="{row["key"]}-h">'
        f'<h2 id="{row["key"]}-h"><span class="number">{number}</span> {escape(row["topic"])} {_badge(row)}</h2>'
        f'<div class="claim"><blockquote><b>Said</b> {escape(row["said"])}</blockquote>'
        f'<p class="instead"><b>Expected here</b> {escape(row["instead"])}</p></div>'
        f"{body}</article>"
    )


def _checks(row: Mapping[str, Any]) -> str:
    groups = (("says", "What the claim says"), ("instead", "What was expected instead"))
    parts = []
    for group, heading in groups:
        checks = [check for check in row["checks"] if check["group"] == group]
        if checks:
            title = f'<tr><th colspan="3" scope="rowgroup" class="group">{heading}</th></tr>'
            parts.append(f"<tbody>{title}{''.join(map(_check, checks))}</tbody>")
    return (
        '<div class="scroll"><table class="checks"><thead><tr><th scope="col">Check</th><th scope="col">Statement</th>'
        f'<th scope="col">Measured</th></tr></thead>{"".join(parts)}</table></div>'
    )


def _check(check: Mapping[str, Any]) -> str:
    name, mark = ("holds", "✓ holds") if check["holds"] else ("fails", "✗ fails")
    return (
        f'<tr class="{name}"><td>{mark}</td><th scope="row">{escape(check["states"])}</th>'
        f"<td>{escape(check['measured'])}</td></tr>"
    )


def _exhibits(exhibits: Iterable[Mapping[str, Any]]) -> str:
    return f'<div class="exhibits">{"".join(map(_figure, exhibits))}</div>'


def _figure(exhibit: Mapping[str, Any]) -> str:
    kind, below = exhibit["kind"], ""
    if kind == "table":
        drawn = _table(exhibit["heading"], exhibit["rows"])
    elif kind == "mask":
        drawn = mask_svg(exhibit["visible"], exhibit["labels"], exhibit["committed"], exhibit["title"])
        below = '<p class="note">Rows look, columns are seen; on the diagonal a node sees itself.</p>'
    elif kind == "tree":
        drawn = tree_svg(exhibit["drawing"], exhibit["title"])
    else:
        drawn, below = chart_svg(exhibit), _numbers(exhibit)
    title = f"<figcaption>{escape(exhibit['title'])}</figcaption>"
    return f'<figure class="{kind}">{title}<div class="scroll">{drawn}</div>{below}</figure>'


def _numbers(exhibit: Mapping[str, Any]) -> str:
    """A chart's numbers as a table, for those who cannot see it or want to copy them."""
    if exhibit["kind"] == "bars":
        heading = [axis_text(exhibit["axis"]), *exhibit["parts"]]
        rows = [[label, *map(short, values)] for label, values in exhibit["bars"]]
    else:
        heading = [axis_text(exhibit["x"]), *(one["name"] for one in exhibit["series"])]
        at = [dict(map(tuple, one["points"])) for one in exhibit["series"]]
        xs = sorted({x for points in at for x in points})
        rows = [[short(x), *(short(points[x]) if x in points else "-" for points in at)] for x in xs]
    return f'<details><summary>The numbers</summary><div class="scroll">{_table(heading, rows)}</div></details>'


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heading)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _provenance(record: Mapping[str, Any]) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in machine(record))
    return (
        '<section class="provenance" aria-labelledby="provenance"><h2 id="provenance">Where the numbers come from</h2>'
        f"<dl>{lines}</dl><p class='how'>Times are of this machine at that moment. A verdict is computed from the "
        "checks of its row: confirmed if all that the claim says holds; else corrected or refuted if some or none of "
        "it holds and all that was expected instead does; else undecided.</p></section>"
    )
