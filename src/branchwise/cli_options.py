"""What several commands of the command line share: options, and loading the model they name."""

from __future__ import annotations

import atexit
import os
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
    typer.Option("--engine", help="transformers; openvino (compiled for the CPU); auto: openvino if it can."),
]
Weights = Annotated[
    str | None, typer.Option(help="With --engine openvino: f32, bf16, int8 or int4.", show_default="the model's own")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def load_model(model: str, dtype: str, device: str | None, threads: int | None) -> tuple[Any, Any]:
    """The model and its tokenizer, with torch set as the options say; what is wrong with an option is said first."""
    from .hub import load

    if device is not None:
        _check_device(device)
    return load(os.path.expanduser(model), dtype=_prepare(model, dtype, threads), device=device)


def _prepare(model: str, dtype: str, threads: int | None) -> torch.dtype | None:
    """Checks the options, sets torch and transformers as they say, and returns the dtype."""
    import torch
    from transformers.utils import logging

    dtypes = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
    if dtype != "auto" and dtype not in dtypes:
        raise ValueError(f"no dtype is named {dtype!r}; there are auto, {', '.join(dtypes)}")
    if model.startswith((".", "~", os.sep)) and not Path(model).expanduser().is_dir():
        raise ValueError(f"no folder {model!r} with a model in it")
    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads must be >= 1, got {threads}")
        torch.set_num_threads(threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return dtypes.get(dtype)


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

    if not tensor_parallel:
        loaded, tokenizer = load_model(model, dtype, device, threads)
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


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from None
