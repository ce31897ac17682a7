"""The command `branchwise tune`: reads arguments, measures what forwards cost, keeps the curve, prints it.

`cli` gives it its name and turns its errors into messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .cli_options import Debug, Device, Dtype, Model, Threads, check_results, load_model, words_of


def tune(
    model: Model = "default",
    contexts: Annotated[str, typer.Option(help="Committed tokens; comma between.")] = "256,1024,4096",
    nodes: Annotated[str, typer.Option(help="Sizes of trees; comma between.")] = "1,2,4,6,8,12,16,24,32,48,64",
    repeats: Annotated[int, typer.Option(help="Forwards per size and context; the median counts.")] = 7,
    plot: Annotated[Path | None, typer.Option(help="Draw cost and chosen budgets (extra: plot).")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result to a file as well.")] = None,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Measure what a forward costs by nodes and context, and keep the curve for budget "auto".

    The curve belongs to this machine, model, number type, engine and number of threads; `generate`, `serve` and
    `Speculator` use it from their first step on. Contexts that the model does not have are left out.
    """
    from .bench.cost_report import choice_records, choice_table, cost_tables, plot_cost
    from .bench.provenance import provenance
    from .bench.report import print_tables, write_json
    from .decode.attach import as_target
    from .tune.curve_key import curve_key
    from .tune.curve_store import CurveStore
    from .tune.measure import count_parts, fitting_contexts, measure_table

    lengths, sizes = _rising(contexts, "contexts"), _rising(nodes, "nodes")
    if repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    check_results(json_path, plot)
    loaded, _ = load_model(model, dtype, device, threads)
    target = as_target(loaded)
    fits = fitting_contexts(target, lengths, sizes[-1])
    if not fits:
        raise ValueError(f"no context of {lengths} fits this model with a tree of {sizes[-1]} nodes; name shorter ones")
    with _progress(count_parts(fits, repeats)) as tell:
        table = measure_table(target, fits, sizes, repeats, tell)
    store = CurveStore(curve_key(target))
    kept = store.save(table)
    print_tables([*cost_tables(table), choice_table(table)], sys.stdout)
    if len(fits) < len(lengths):
        typer.echo(f"contexts {[length for length in lengths if length not in fits]} are more than this model has")
    typer.echo("kept for budget auto" if kept else "not kept: nothing can be written to the cache folder")
    if json_path is not None:
        record = {"bench": "tune", "table": table.as_dict(store.key), "choices": choice_records(table), "kept": kept}
        write_json(record | {"provenance": provenance(model=Path(model).name)}, json_path)
    if plot is not None:
        plot_cost(table, store.key, plot)


def _rising(text: str, what: str) -> list[int]:
    words = words_of(text)
    for word in words:
        if not word.isdigit() or int(word) < 1:
            raise ValueError(f"--{what} must be whole numbers >= 1 with commas between, got {word!r}")
    if not words:
        raise ValueError(f"--{what} is empty: name at least one")
    return sorted({int(word) for word in words})


@contextmanager
def _progress(parts: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=parts)

        def tell(what: str) -> None:
            bar.update(task, advance=1, description=what)

        yield tell
