"""What every command of the command line needs: options that several share, errors in one line, loading a model."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

EXIT_FAILED = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])

Model = Annotated[str, typer.Option(help="'default', another short name, a folder, or a Hub id.")]
Dtype = Annotated[str, typer.Option(help="auto (the checkpoint's own), float32, bfloat16, float16 or float64.")]
Device = Annotated[str | None, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, ...", show_default="cpu")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", show_default="torch's own choice")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def reports_errors(command: Command) -> Command:
    """Turns errors that a user can act on into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            typer.echo("\nbranchwise: interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # the reader (head, less) has left; nothing more to say, and Python must not try to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_FAILED) from None
        except (ValueError, OSError, ImportError) as error:
            if kwargs.get("debug"):
                raise
            typer.echo(f"branchwise: {' '.join(str(error).split()) or type(error).__name__}", err=True)
            raise typer.Exit(EXIT_ERROR) from None

    return run  # type: ignore[return-value]


def load_model(model: str, dtype: str, device: str | None, threads: int | None) -> tuple[Any, Any]:
    """The model and its tokenizer, or one line about why not."""
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
