"""What several commands of the command line share: options, and loading the model they name."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from .target import Target

EXIT_FAILED = 1

Model = Annotated[str, typer.Option(help="'default', another short name, a folder, or a Hub id.")]
Dtype = Annotated[str, typer.Option(help="auto (the checkpoint's own), float32, bfloat16, float16 or float64.")]
Device = Annotated[str | None, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, ...", show_default="cpu")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", show_default="torch's own choice")]
TensorParallel = Annotated[
    bool,
    typer.Option(
        "--tensor-parallel", help="Spread the weights over the processes that torchrun started; the first one decides."
    ),
]
EngineName = Annotated[
    str,
    typer.Option("--engine", help="transformers; native or openvino (for CPUs); auto: the fastest that can."),
]
Weights = Annotated[
    str | None,
    typer.Option(help="With --engine native or openvino: f32, bf16, int8 or int4.", show_default="the model's own"),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def load_model(model: str, dtype: str, device: str | None, threads: int | None) -> tuple[Any, Any]:
    """The model and its tokenizer, with torch set as the options say; what is wrong with an option is said first."""
    from .hub import load, resolve
    from .hub.memory import memory_warning
    from .hub.place import check_device

    if device is not None:
        check_device(device)
    chosen = _prepare(model, dtype, threads)
    place = Path(resolve(os.path.expanduser(model)))
    warning = memory_warning(place) if place.is_dir() and device in (None, "cpu") else None
    if warning is not None:
        typer.echo(f"branchwise: {warning}", err=True)
    return load(os.path.expanduser(model), dtype=chosen, device=device)


def _prepare(model: str, dtype: str, threads: int | None) -> torch.dtype | str:
    """Checks the options, sets torch and transformers as they say, and returns the dtype."""
    from transformers.utils import logging

    from .hub import resolve
    from .hub.place import dtype_named

    chosen = dtype_named(dtype)
    set_threads(threads)
    logging.set_verbosity_error()
    if os.path.isdir(resolve(os.path.expanduser(model))) or not sys.stderr.isatty():
        logging.disable_progress_bar()  # of reading what lies on disk; a download from the Hub keeps its bars
    return chosen


def load_target(
    model: str,
    dtype: str,
    device: str | None,
    threads: int | None,
    tensor_parallel: bool,
    engine_name: str = "transformers",
    weights: str | None = None,
) -> tuple[Target, Any]:
    """The model as a target, and its tokenizer.

    With ``tensor_parallel`` only the first process returns: the others do their share until it is done, and exit then.
    """
    from .decode.attach import as_target
    from .hub.place import dtype_warning

    if not tensor_parallel:
        loaded, tokenizer = load_model(model, dtype, device, threads)
        warning = dtype_warning(loaded.dtype, loaded.device) if engine_name == "transformers" else None
        if warning is not None:
            typer.echo(f"branchwise: {warning}", err=True)
        return as_target(loaded, engine_name, weights), tokenizer
    if engine_name != "transformers":
        raise ValueError(f"--engine {engine_name} cannot be honoured with --tensor-parallel, which transformers runs")
    from .target import ShardedTarget, follow, load_sharded
    from .target.sharded_load import rank, world_size

    world_size()
    if device is not None:
        raise ValueError("--device cannot be honoured with --tensor-parallel: every process takes its own")
    loaded, tokenizer = load_sharded(os.path.expanduser(model), dtype=_prepare(model, dtype, threads))
    if rank():
        follow(loaded)
        raise typer.Exit
    target = ShardedTarget(loaded)
    atexit.register(target.close)
    return target, tokenizer


def is_follower(tensor_parallel: bool) -> bool:
    """Whether this process only does its share of another one's forwards."""
    if not tensor_parallel:
        return False
    from .target.sharded_load import rank

    return rank() > 0


def set_threads(threads: int | None) -> None:
    """Gives torch so many threads; None leaves its own choice."""
    import torch

    if threads is None:
        return
    if threads < 1:
        raise ValueError(f"threads must be >= 1, got {threads}")
    torch.set_num_threads(threads)


def words_of(text: str) -> list[str]:
    """The words of a list with commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


def check_results(json_path: Path | None, plot: Path | None) -> None:
    """Refuses files for the results of a bench that could not be written, before anything is measured."""
    from .bench.plots import check_plotting
    from .bench.report import check_writable

    if plot is not None:
        check_plotting()
    for path in (json_path, plot):
        if path is not None:
            check_writable(path)


def finish_bench(
    record: dict[str, Any], json_path: Path | None, plot: Path | None, draw: Callable[[dict[str, Any], Path], None]
) -> None:
    """Writes and draws the result of a bench of methods and prints its last line.

    Raises:
        KeyboardInterrupt: the run was interrupted.
        typer.Exit: a method failed.
    """
    from .bench.report import last_line, write_json

    if json_path is not None:
        write_json(record, json_path)
    if plot is not None:
        draw(record, plot)
    typer.echo(last_line(record))
    if record["interrupted"]:
        raise KeyboardInterrupt
    if any(method["error"] for method in record["methods"].values()):
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def counted(label: str, total: int) -> Iterator[Callable[[str], None]]:
    """Shows how far a run of ``total`` items is: a bar on a terminal, else one line per item; both on stderr.

    Yields:
        what is to be called with a line after every item.
    """
    if not sys.stderr.isatty():
        yield lambda line: typer.echo(line, err=True)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
    with bars.Progress(
        *columns, bars.TextColumn("{task.fields[note]}"), bars.TimeRemainingColumn(), console=Console(file=sys.stderr)
    ) as shown:
        task = shown.add_task(label, total=total, note="")
        yield lambda line: shown.update(task, advance=1, note=line)


def shown_model(model: str) -> str:
    """The model as it was named, without the folders around it."""
    return Path(model).name if os.path.isabs(model) else model
