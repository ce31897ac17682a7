"""The command `branchwise doctor`: calls `doctor`, prints. `cli` gives it its name and turns errors into messages."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .cli_options import EXIT_FAILED, Debug, Device, Threads, set_threads

#: as wide as the longest topic
_TOPIC_WIDTH = 14


def doctor(
    speed: Annotated[
        bool, typer.Option("--speed", help="Also measure the speed-up on the default model (fetched if need be).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Look at this machine: versions, kernels, cache, extras, and a proof that outputs are unchanged.

    Exits with 1 when something is broken; what is merely absent is marked with a dash. For a bug report: --json.
    """
    if device is not None:
        from .hub.place import check_device

        check_device(device)
    set_threads(threads)

    from transformers.utils import logging

    from .doctor import Finding, examine, measured_speed

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            typer.echo(finding.line(_TOPIC_WIDTH))

    for finding in examine(device or "cpu"):
        tell(finding)
    if speed:
        tell(measured_speed(device))
    broken = [finding for finding in findings if finding.state == "broken"]
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "findings": [finding.as_dict() for finding in findings]}))
    if broken:
        raise typer.Exit(EXIT_FAILED)
