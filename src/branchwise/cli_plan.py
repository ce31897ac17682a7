"""The command `branchwise plan`: read arguments, call `plan`, print.

`cli` gives it its name and turns its errors into messages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_options import EXIT_FAILED, Debug, Threads

if TYPE_CHECKING:
    from .plan.commands import ModelOrder, TraceOrder


def plan(
    hardware: Annotated[
        str | None, typer.Option(help="h100, h200, b200, this (measured now), or a .json file of the same form.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="The model: a config.json, its folder, or a short name. No weights are needed.")
    ] = None,
    acceptance: Annotated[
        Path | None, typer.Option(help="What the drafter is worth: a file of branchwise bench --json, for instance.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Of several kinds of trees in that file the one that counts: tree:mixed+model.")
    ] = None,
    draft: Annotated[
        str, typer.Option(help="lookup (no model), layers:N (a head of N of the target's layers), or a config.")
    ] = "lookup",
    dtype: Annotated[str, typer.Option(help="Of weights, keys and values.")] = "bfloat16",
    engine: Annotated[str, typer.Option(help="eager (as transformers runs), or compiled (fused, in a CUDA graph).")] = (
        "eager"
    ),
    devices: Annotated[int, typer.Option(help="Devices that share every layer (tensor parallelism).")] = 1,
    host: Annotated[
        bool, typer.Option("--host/--no-host", help="Count the host's time that the acceptance file has.")
    ] = True,
    batch: Annotated[str | None, typer.Option(help="Lanes: 1..512 doubles; 1,8,64.", show_default="1..512")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens before every tree.", show_default="2048")] = None,
    largest: Annotated[int | None, typer.Option(help="Most nodes of a tree, as far as acceptance is known.")] = None,
    trace: Annotated[
        str | None, typer.Option(help="Simulate these arrivals: poisson:RATE (requests per second), or a file.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds of arrivals.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Engines that share them.", show_default="1")] = None,
    max_lanes: Annotated[int | None, typer.Option(help="Requests at once per engine.", show_default="64")] = None,
    budget: Annotated[str | None, typer.Option(help="Nodes per tree, or auto; 1: plain.", show_default="auto")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Mean, with poisson.", show_default="512")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Mean, with poisson.", show_default="256")] = None,
    spread: Annotated[
        float | None, typer.Option(help="Of lengths: deviation of the logarithm; 0: all alike.", show_default="0.5")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Of a device per hour, in your currency.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of arrivals and acceptance.", show_default="0")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare the model with forwards of --config here.")] = False,
    repeats: Annotated[int | None, typer.Option(help="Forwards per check.", show_default="9")] = None,
    save_hardware: Annotated[Path | None, typer.Option(help="Write the measured machine to a .json file.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result to a file as well.")] = None,
    device: Annotated[str | None, typer.Option(help="Where this is measured.", show_default="cuda, or cpu")] = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Predict other machines and loads: which budget pays at which batch, or how a fleet serves a trace.

    A cost model (docs/scale.md says what is in it and what is not) and, with --trace, the engine's own scheduling on a
    simulated clock. --check compares the model with this machine, exit code 1 when it is off by more than 20%.
    """
    from .bench.report import check_writable, write_json
    from .plan.commands import MachineOrder, check_machine, plan_batches, plan_trace

    for path in (json_path, save_hardware):
        if path is not None:
            check_writable(path)
    of_batches = {"batch": batch, "context": context, "largest": largest}
    of_traces = {
        "duration": duration,
        "replicas": replicas,
        "max_lanes": max_lanes,
        "budget": budget,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "spread": spread,
        "price": price,
        "seed": seed,
    }
    of_models: dict[str, Any] = {"hardware": hardware, "acceptance": acceptance, "method": method}
    machine = MachineOrder("this" if check else hardware or "", dtype, device, threads)
    if check:
        changed = {
            "draft": draft != "lookup",
            "engine": engine != "eager",
            "devices": devices != 1,
            "no_host": not host,
        }
        of_models |= {name: True for name, is_changed in changed.items() if is_changed}
        _refuse({**of_batches, **of_traces, **of_models, "trace": trace}, "--check")
        record, measured = check_machine(machine, config or "default", 9 if repeats is None else repeats, typer.echo)
        _write(record, json_path, measured.as_dict(), save_hardware)
        if not record["met"]:
            raise typer.Exit(EXIT_FAILED)
        return
    _refuse({"repeats": repeats}, "a plan; it goes with --check")
    if save_hardware is not None and hardware != "this":
        raise ValueError("--save-hardware writes what was measured: it goes with --hardware this or --check")
    model = _model(hardware, config, acceptance, method, draft, engine, devices, host)
    if trace is None:
        _refuse(of_traces, "a plan of batches; it goes with --trace")
        record = plan_batches(
            machine, model, batch or "1..512", 2048 if context is None else context, largest, typer.echo
        )
    else:
        _refuse(of_batches, "--trace")
        record = plan_trace(machine, model, _trace(trace, of_traces), typer.echo)
    if json_path is not None:
        write_json(record, json_path)
    if save_hardware is not None:
        write_json(record["hardware"], save_hardware)


def _model(
    hardware: str | None,
    config: str | None,
    acceptance: Path | None,
    method: str | None,
    draft: str,
    engine: str,
    devices: int,
    host: bool,
) -> ModelOrder:
    from .plan.commands import ModelOrder

    needed = {"--hardware": hardware, "--config": config, "--acceptance": acceptance}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise ValueError(f"a plan needs {', '.join(missing)} (see branchwise plan --help)")
    assert config is not None and acceptance is not None
    return ModelOrder(config, acceptance, method, draft, engine, devices, host)


def _trace(trace: str, options: dict[str, Any]) -> TraceOrder:
    from .plan.commands import TraceOrder
    from .plan.fleet import FleetSettings
    from .plan.trace import Lengths

    given = {name: value for name, value in options.items() if value is not None}
    price = given.get("price")
    if price is not None and not price >= 0:
        raise ValueError(f"--price must be a number from 0 on, got {price}")
    if not trace.startswith("poisson:"):
        # a file says itself how long its requests are
        _refuse({name: given.get(name) for name in ("prompt_tokens", "output_tokens", "spread")}, "a trace from a file")
    lengths = Lengths(**{name: given[name] for name in ("prompt_tokens", "output_tokens", "spread") if name in given})
    settings: dict[str, Any] = {name: given[name] for name in ("replicas", "max_lanes", "seed") if name in given}
    if "budget" in given:
        settings["budget"] = int(given["budget"]) if given["budget"].isdigit() else given["budget"]
    return TraceOrder(trace, given.get("duration"), lengths, FleetSettings(**settings), price)


def _refuse(options: dict[str, Any], there: str) -> None:
    """No option is silently ignored."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)} has no meaning with {there}")


def _write(
    record: dict[str, Any], json_path: Path | None, hardware: dict[str, Any], save_hardware: Path | None
) -> None:
    from .bench.report import write_json

    if json_path is not None:
        write_json(record, json_path)
    if save_hardware is not None:
        write_json(hardware, save_hardware)
    typer.echo(json.dumps(record))
