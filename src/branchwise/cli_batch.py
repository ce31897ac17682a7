"""`branchwise batch`, and the options of clusters: reads arguments, calls the rooms, prints."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_drafting import Drafter, DraftModel, Head, check_choices, number_or_auto
from .cli_options import (
    EXIT_FAILED,
    Debug,
    Device,
    Dtype,
    Model,
    TensorParallel,
    Threads,
    is_follower,
    load_target,
    shown_model,
)

if TYPE_CHECKING:
    from .batch.answer import Answer
    from .batch.job import Answering
    from .batch.source import Wave
    from .batch.worker import Work

Ray = Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster; without --address on one of this machine.")]
Address = Annotated[str | None, typer.Option(help="With --ray: the address of a running cluster.")]
ReplicaCpus = Annotated[float, typer.Option(help="With --ray: CPUs that each replica takes of the cluster.")]
ReplicaGpus = Annotated[float, typer.Option(help="With --ray: GPUs that each replica takes of the cluster.")]

PIPE = "-"
#: rows per wave and lane: more keep the lanes fuller, fewer are repeated after a kill
WAVE_ROWS_PER_LANE = 8


def batch(
    source: Annotated[str, typer.Argument(metavar="IN", help="Rows to answer, a JSON object each; '-' is stdin.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Where the answers go, in the same order; '-' is stdout.")],
    model: Model = "default",
    served_name: Annotated[str | None, typer.Option(help="What rows call the model.", show_default="MODEL")] = None,
    seed: Annotated[int, typer.Option(help="Of the file: rows without a seed get one that follows from it.")] = 0,
    max_tokens: Annotated[int | None, typer.Option(help="For rows that do not say: most new tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="For rows that do not say; 0 is greedy.")] = None,
    drafter: Drafter = "auto",
    draft_model: DraftModel = None,
    head: Head = None,
    budget: Annotated[str, typer.Option(help="auto, or nodes per tree; 1 is plain decoding.")] = "auto",
    max_lanes: Annotated[int, typer.Option(help="Most rows answered at once, per model.")] = 16,
    pool_tokens: Annotated[int, typer.Option(help="Rows of keys and values over all lanes.")] = 32_768,
    prefix_megabytes: Annotated[int, typer.Option(help="Memory for shared beginnings of prompts; 0 is off.")] = 256,
    wave_rows: Annotated[
        int | None,
        typer.Option(help="Rows answered together; a kill repeats one wave.", show_default="8 per lane"),
    ] = None,
    max_row_bytes: Annotated[int, typer.Option(help="Longest line; longer ones get an error.")] = 4 * 2**20,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = False,
    ray: Ray = False,
    replicas: Annotated[int, typer.Option(help="With --ray: models at work at once.")] = 1,
    address: Address = None,
    replica_cpus: ReplicaCpus = 1.0,
    replica_gpus: ReplicaGpus = 0.0,
    debug: Debug = False,
) -> None:
    """Answer every row of a file: OpenAI's batch form, {"prompt": ...} or {"messages": ...}, with the server's fields.

    Run the same command again after a kill: it goes on where it stopped, and the output is the same to the byte. Rows
    with an error keep it in their place; the exit status is 1 when there are any, 0 when there are none.
    """
    if is_follower(tensor_parallel):
        load_target(model, dtype, device, threads, tensor_parallel)
    check_cluster_options(ray, tensor_parallel, replicas != 1, address, replica_cpus, replica_gpus)
    if ray and source == PIPE:
        raise ValueError("workers on a cluster read the input themselves: with --ray give a file that all of them see")
    from .decode.recipe import EngineRecipe

    check_choices(drafter, budget, draft_model, None, head)
    try:
        from .batch.job import run_job
        from .batch.output import StandardOutput
        from .batch.row import RowDefaults
        from .batch.source import InputFile
        from .batch.worker import Work
    except ImportError as error:
        missing = error.name or "a package"
        raise ImportError(f"{missing} is missing; batches need: pip install 'branchwise[serve]'") from None
    defaults = RowDefaults(seed, max_tokens, temperature)
    recipe = EngineRecipe(
        model=_place(model),
        dtype=dtype,
        device=device,
        threads=threads,
        drafter=drafter,
        draft_model=None if draft_model is None else _place(draft_model),
        head=head,
        budget=number_or_auto(budget),
        max_lanes=max_lanes,
        pool_tokens=pool_tokens,
        prefix_bytes=prefix_megabytes * 2**20,
    )
    if wave_rows is None:
        wave_rows = WAVE_ROWS_PER_LANE * max_lanes
    with _readable(source) as path:
        rows = InputFile.read(path, wave_rows, max_row_bytes)
        work = Work(rows, defaults, recipe, served_name or shown_model(model))
        if ray:
            from .batch.cluster import Cluster

            cluster = Cluster(address, replicas, replica_cpus, replica_gpus)
            answering: Answering = lambda waves: cluster.answers(work, waves)  # noqa: E731
        elif tensor_parallel:
            # the other processes are loading, too
            answering = _on(work, load_target(model, dtype, device, threads, True))
        else:
            answering = _on(work)
        tally = run_job(work, StandardOutput(sys.stdout.buffer) if out == PIPE else Path(out), wave_rows, answering)
    failed = f", {tally.failed} of them with an error" if tally.failed else ""
    typer.echo(f"branchwise: {tally.done} rows answered{failed}; {tally.fresh} in this run", err=True)
    if tally.failed:
        raise typer.Exit(EXIT_FAILED)


def check_cluster_options(
    ray: bool, tensor_parallel: bool, has_replicas: bool, address: str | None, cpus: float, gpus: float
) -> None:
    """Finds options that need another one, or exclude it.

    Raises:
        ValueError: names them.
        ImportError: Ray is asked for and missing.
    """
    if ray:
        if tensor_parallel:
            raise ValueError("--ray and --tensor-parallel exclude each other; give one")
        from .serve.ray_connection import require_ray

        require_ray()
        return
    given = {"--replicas": has_replicas, "--address": address is not None}
    given |= {"--replica-cpus": cpus != 1.0, "--replica-gpus": gpus != 0.0}
    for option, is_given in given.items():
        if is_given:
            raise ValueError(f"{option} goes with --ray")


def _on(work: Work, loaded: tuple[Any, Any] | None = None) -> Answering:
    """Answers in this process, with a model that is loaded already or when it is needed."""
    from .batch.worker import Worker

    def answers(waves: Sequence[Wave]) -> Iterator[Answer]:
        worker = Worker.load(work) if loaded is None else Worker(work, *loaded, work.recipe.drafter_options(loaded[0]))
        for wave in waves:
            yield from worker.answers(wave)

    return answers


def _place(model: str) -> str:
    """A model's folder, fetched if need be: workers elsewhere know no short names of this machine."""
    from .hub import resolve

    return resolve(os.path.expanduser(model))


@contextmanager
def _readable(source: str) -> Iterator[Path]:
    """The input as a file that can be read again: stdin is copied to one that is removed in the end."""
    if source != PIPE:
        yield Path(source)
        return
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)
