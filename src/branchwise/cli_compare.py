"""The command `branchwise compare`: reads arguments, calls `compare`, writes page and JSON, prints.

`cli` gives it its name and turns its errors into messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_options import EXIT_FAILED, Debug, Device, Dtype, Model, Threads, load_model


def compare(
    model: Model = "default",
    out: Annotated[Path | None, typer.Option(help="Write the report as one HTML page without outside assets.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the same as JSON.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller measurements, in a minute instead of some.")] = False,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """What is said about tree attention, claim by claim, each beside the measurement that settles it.

    Every claim is confirmed, corrected or refuted by numbers of this model on this machine; where they contradict what
    was expected, the row says so. Exits with 1 when a measurement failed.
    """
    from .bench.report import check_writable, write_json

    for path in (out, json_path):
        if path is not None:
            check_writable(path)

    from .bench.provenance import model_facts
    from .compare.effort import FULL, QUICK
    from .compare.page import page
    from .compare.report import compare as run_comparison
    from .compare.subject import Subject
    from .compare.terminal import print_comparison
    from .hub import resolve

    loaded, tokenizer = load_model(model, dtype, device, threads)
    subject = Subject(loaded, tokenizer, QUICK if quick else FULL)
    facts = model_facts(model, str(resolve(model)), loaded)
    record = run_comparison(subject, facts, progress=lambda line: typer.echo(line, err=True))
    print_comparison(record)
    if json_path is not None:
        write_json(record, json_path)
    if out is not None:
        out.write_text(page(record), encoding="utf-8")
        typer.echo(f"report: {out}", err=True)
    if any(row["failed"] for row in record["rows"]):
        raise typer.Exit(EXIT_FAILED)
