"""What several commands of the command line share: options, and loading the model they name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_FAILED = 1

Model = Annotated[str, typer.Option(help="'default', another short name, a folder, or a Hub id.")]
Dtype = Annotated[str, typer.Option(help="auto (the checkpoint's own), float32, bfloat16, float16 or float64.")]
Device = Annotated[str | None, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, ...", show_default="cpu")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", show_default="torch's own choice")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def load_model(model: str, dtype: str, device: str | None, threads: int | None) -> tuple[Any, Any]:
    """The model and its tokenizer, with torch set as the options say; what is wrong with an option is said first."""
    import torch
    from transformers.utils import logging

    from .hub import load

    dtypes = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
    if dtype != "auto" and dtype not in dtypes:
        raise ValueError(f"no dtype is named {dtype!r}; there are auto, {', '.join(dtypes)}")
    if device is not None:
        _check_device(device)
    if model.startswith((".", "~", os.sep)) and not Path(model).expanduser().is_dir():
        raise ValueError(f"no folder {model!r} with a model in it")
    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads must be >= 1, got {threads}")
        torch.set_num_threads(threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return load(os.path.expanduser(model), dtype=dtypes.get(dtype), device=device)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from None
