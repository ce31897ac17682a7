"""The commands `branchwise bench attention` and `branchwise bench forward`: read arguments, call `bench`, print.

`cli` gives them their names and turns their errors into messages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .cli_options import EXIT_FAILED, Debug, Threads, check_results, words_of

Numbers = Annotated[str, typer.Option(help="Comma between.")]
Repeats = Annotated[int, typer.Option(help="Calls per way; the median counts.")]
Plot = Annotated[Path | None, typer.Option(help="Draw cost against nodes and against context (extra: plot).")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result to a file as well.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...", show_default="cuda if there is one")]


class DefaultsToPrompts(TyperGroup):
    """A group of commands in which ``bench FILE ...`` is short for ``bench prompts FILE ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the missing name in front, unless help on the group is asked for."""
        if args[:1] != ["--help"] and (not args or args[0] not in self.commands):
            args = ["prompts", *args]
        return super().parse_args(ctx, args)


def attention(
    nodes: Numbers = "1,8,16,32,64,128",
    contexts: Numbers = "256,2048,8192,32768",
    heads: Annotated[
        str, typer.Option(help="Query heads x key/value heads x width, comma between.")
    ] = "9x3x64,9x9x64,32x8x128,32x32x128",
    dtypes: Annotated[str, typer.Option(help="Comma between.")] = "float32,bfloat16",
    backends: Annotated[
        str | None,
        typer.Option(help="Backends, sdpa and flashinfer; comma between.", show_default="what suits the device"),
    ] = None,
    repeats: Repeats = 9,
    bar: Annotated[
        float | None, typer.Option(help="Exit with 1 if the first way exceeds this multiple, or is slower than sdpa.")
    ] = None,
    plot: Plot = None,
    json_path: Json = None,
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Tree attention against the limit of the machine, for one layer and one sequence.

    Every way runs in turns on the same keys; times are multiples of reading keys and values once, or of the arithmetic
    at the machine's matrix rate, whichever is longer. Both are measured first. Exits with 1 when a way
    is wrong or misses --bar.
    """
    from .bench.attention_calls import default_ways
    from .bench.roofline import Sweep, heading, misses, run_sweep

    where = _prepare(device, threads, plot, json_path)
    sweep = Sweep(
        heads=[_heads(word) for word in _words(heads, "heads")],
        nodes=_counts(nodes, "nodes", least=1),
        contexts=_counts(contexts, "contexts", least=0),
        dtypes=[_dtype(word) for word in _words(dtypes, "dtypes")],
        ways=default_ways(where) if backends is None else _words(backends, "backends"),
        repeats=_at_least("repeats", repeats, 1),
    )
    typer.echo(heading())
    record = run_sweep(sweep, where, typer.echo)
    record["bar"], record["misses"] = bar, [] if bar is None else misses(record["rows"], bar)
    for line in record["misses"]:
        typer.echo(line)
    _finish(record, plot, json_path)
    if record["wrong"] or record["misses"]:
        raise typer.Exit(EXIT_FAILED)


def forward(
    nodes: Numbers = "1,8,16,32,64,128",
    contexts: Numbers = "256,2048,8192,32768",
    backends: Annotated[str, typer.Option(help="Attention backends, comma between.")] = "auto",
    model: Annotated[str, typer.Option(help="'default', another short name, a folder, or a Hub id.")] = "default",
    dtype: Annotated[str, typer.Option(help="auto (the checkpoint's own), float32, bfloat16 or float16.")] = "auto",
    repeats: Repeats = 7,
    plot: Plot = None,
    json_path: Json = None,
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """A whole forward of a tree against the limit of the machine.

    The limit is reading all weights, keys and values once, or the arithmetic at the machine's matrix rate, whichever is
    longer. Both are measured first. Contexts that the model does not have are skipped.
    """
    from .bench.provenance import model_facts
    from .bench.roofline_forward import run_forward_sweep
    from .hub import load, resolve

    where = _prepare(device, threads, plot, json_path)
    counts, lengths = _counts(nodes, "nodes", least=1), _counts(contexts, "contexts", least=1)
    asked = _words(backends, "backends")
    _at_least("repeats", repeats, 1)
    loaded, _ = load(model, dtype=None if dtype == "auto" else _dtype(dtype), device=str(where))
    facts = model_facts(model, str(resolve(model)), loaded)
    record = run_forward_sweep(loaded, counts, lengths, asked, repeats, facts, typer.echo)
    _finish(record, plot, json_path)


def _prepare(device: str | None, threads: int | None, plot: Path | None, json_path: Path | None) -> Any:
    """Everything that can be refused before an hour of measuring; returns the device."""
    import torch

    from .hub.place import check_device

    check_results(json_path, plot)
    if threads is not None:
        torch.set_num_threads(_at_least("threads", threads, 1))
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(where)
    return torch.device(where)


def _finish(record: dict[str, Any], plot: Path | None, json_path: Path | None) -> None:
    from .bench.report import write_json

    if plot is not None:
        from .bench.plots import plot_sweep

        plot_sweep(record, plot)
    if json_path is not None:
        write_json(record, json_path)
    typer.echo(json.dumps(record))


def _words(text: str, what: str) -> list[str]:
    words = words_of(text)
    if not words:
        raise ValueError(f"--{what} is empty: name at least one")
    return words


def _counts(text: str, what: str, least: int) -> list[int]:
    words = _words(text, what)
    for word in words:
        if not word.isdigit():
            raise ValueError(f"--{what} must be whole numbers with commas between, got {word!r}")
    return [_at_least(what, int(word), least) for word in words]


def _at_least(what: str, count: int, least: int) -> int:
    if count < least:
        raise ValueError(f"{what} must be >= {least}, got {count}")
    return count


def _heads(word: str) -> tuple[int, int, int]:
    parts = word.split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise ValueError(f"--heads must be like 9x3x64 (query heads, key/value heads, width), got {word!r}")
    heads, kv_heads, dim = map(int, parts)
    if heads % kv_heads:
        raise ValueError(f"--heads {word}: {heads} query heads are not a multiple of {kv_heads} key/value heads")
    return heads, kv_heads, dim


def _dtype(word: str) -> Any:
    import torch

    dtypes = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
    if word not in dtypes:
        raise ValueError(f"no dtype is named {word!r} here; there are {', '.join(dtypes)}")
    return dtypes[word]
