"""The command line: reads arguments, calls the rooms, prints. Every decision about generation is made elsewhere.

torch and transformers are imported inside the commands, so that ``branchwise --help`` answers at once.
"""

from __future__ import annotations

import functools
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from . import cli_batch, cli_compare, cli_doctor, cli_peers, cli_plan, cli_roofline, cli_show, cli_train, cli_tune
from .cli_drafting import (
    Drafter,
    DraftModel,
    DraftTree,
    ExitLayer,
    Head,
    TreeFile,
    check_choices,
    check_specs,
    drafter_options,
    number_or_auto,
    read_drafter_files,
)
from .cli_errors import message_of
from .cli_examples import add_examples
from .cli_options import (
    EXIT_FAILED,
    Debug,
    Device,
    Dtype,
    EngineName,
    Model,
    TensorParallel,
    Threads,
    Weights,
    check_results,
    counted,
    finish_bench,
    is_follower,
    load_model,
    load_target,
    shown_model,
    words_of,
)
from .cli_prompt import (
    Chat,
    Ebnf,
    JsonSchema,
    MaxNewTokens,
    MinP,
    Prompt,
    PromptFile,
    Regex,
    RepetitionPenalty,
    Seed,
    Stop,
    System,
    Temperature,
    TopK,
    TopP,
    check_new_tokens,
    read_grammar,
    read_prompt,
    stop_strings,
)

if TYPE_CHECKING:
    from .bench.compare import Comparison
    from .decode import Generation
    from .losslessness import Row

app = typer.Typer(
    help="Exact tree speculation for Hugging Face causal language models: faster generation, unchanged output.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(
    help="Models with a short name: list them, fetch one, say where it lies.", no_args_is_help=True
)
app.add_typer(models_app, name="models")
bench_app = typer.Typer(
    help="Measure: `branchwise bench FILE` (short for `bench prompts FILE`), other engines, attention, forwards.",
    cls=cli_roofline.DefaultsToPrompts,
)
app.add_typer(bench_app, name="bench")
train_app = typer.Typer(help="Train draft heads: first data, then a head, then figures.", no_args_is_help=True)
app.add_typer(train_app, name="train")

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])


def main() -> None:
    """The entry point."""
    # a warning's place in the code means nothing to somebody at the command line
    warnings.formatwarning = lambda message, *_, **__: f"branchwise: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character gets a question mark, no traceback
            stream.reconfigure(errors="replace")
    app()


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
        except Exception as error:
            message = message_of(error)
            if message is None or kwargs.get("debug"):
                raise
            typer.echo(f"branchwise: {message}", err=True)
            raise typer.Exit(EXIT_ERROR) from None

    # `wraps` keeps the signature, which the type of the wrapper does not say
    return run  # type: ignore[return-value]


@app.command()
@reports_errors
def generate(
    prompt: Prompt = None,
    file: PromptFile = None,
    model: Model = "default",
    chat: Chat = None,
    system: System = None,
    drafter: Drafter = "auto",
    draft_model: DraftModel = None,
    draft_tree: DraftTree = None,
    head: Head = None,
    exit_layer: ExitLayer = None,
    rule: Annotated[
        str, typer.Option(help="auto, greedy, match, rejection, traversal, ...; typical is lossy: it changes the law.")
    ] = "auto",
    budget: Annotated[str, typer.Option(help="Most nodes of a tree, root included; 1 is plain decoding.")] = "auto",
    tree: TreeFile = None,
    suffix_store: Annotated[
        Path | None, typer.Option(help="Earlier texts for --drafter suffix: read if there, written in the end.")
    ] = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    seed: Seed = None,
    stop: Stop = None,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    ebnf: Ebnf = None,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: each token's log-probability and so many alternatives; 0 is the token alone."),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = False,
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also decode plainly: how much faster? the same?")] = False,
    show_tree: Annotated[bool, typer.Option("--show-tree", help="Draw each step's tree on stderr.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")] = False,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the text when it is complete.")] = False,
    debug: Debug = False,
) -> None:
    """Continue PROMPT, or answer it with --chat. Greedy unless --temperature is above 0.

    The text goes to stdout, statistics to stderr. Sampling defaults of the checkpoint are not used: what is not asked
    for here is off.
    """
    if is_follower(tensor_parallel):
        load_target(model, dtype, device, threads, tensor_parallel)
    text = read_prompt(prompt, file)
    from .bench.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    stops = stop_strings(stop)
    check_new_tokens(max_new_tokens)
    if logprobs is not None and not as_json:
        raise ValueError("--logprobs are part of the JSON object: add --json")
    files = read_drafter_files(drafter, tree, suffix_store)
    if compare and suffix_store is not None:
        raise ValueError("--compare starts every run with a drafter that has seen nothing; leave --suffix-store out")
    check_choices(drafter, budget, draft_model, draft_tree, head, exit_layer)
    from .decode.attach import check_engine

    check_engine(engine_name, weights)
    grammar = read_grammar(json_schema, regex, ebnf)
    if compare and seed is None and not sampling.is_greedy:
        seed = int.from_bytes(os.urandom(4), "big")  # both sides must flip the same coins

    from .bench.compare import Order
    from .bench.compare import compare as compare_runs
    from .bench.prompts import encode_prompt
    from .decode import Speculator
    from .draft import make_drafter
    from .show import LiveText
    from .show.generation import generation_record
    from .verify.registry import RULES

    target, tokenizer = load_target(model, dtype, device, threads, tensor_parallel, engine_name, weights)
    prompt_ids = encode_prompt(tokenizer, text, chat=chat, system=system)
    order = Order(prompt_ids, sampling, max_new_tokens, stops, seed, grammar, logprobs)
    live = None if as_json or no_stream else LiveText(tokenizer, _write, stops)
    comparison = None
    options = files | drafter_options(draft_model, draft_tree, dtype, str(target.device), tokenizer, head, exit_layer)
    make = functools.partial(make_drafter, drafter, target=target, **options)
    if compare:
        comparison = compare_runs(order, target, tokenizer, make, rule, budget, live)
        generation = comparison.drafts
    else:
        generation = order.run(Speculator(target, tokenizer, drafter=make(), rule=rule, budget=budget), live)

    if as_json:
        record = generation_record(generation)
        record |= {"model": shown_model(model), "drafter": drafter, "rule": rule}
        record |= {"budget": number_or_auto(budget), "seed": seed}
        record |= {"engine": engine_name, "weights": weights}
        record["lossless"] = rule not in RULES or RULES[rule].lossless
        if draft_model is not None:
            record["draft_model"] = shown_model(draft_model)
        if head is not None:
            record["head"] = Path(head).name
        if exit_layer is not None:
            record["exit_layer"] = exit_layer
        if comparison is not None:
            record["compare"] = comparison.as_dict()
        typer.echo(json.dumps(record))
    else:
        _write(("" if live is not None else generation.text or "") + "\n")
    if show_tree:
        _draw_steps(generation, tokenizer)
    if not as_json:
        _print_statistics(generation, comparison)
    if suffix_store is not None:
        files["store"].save(suffix_store)


app.command("show")(reports_errors(cli_show.show))


@models_app.command("list")
@reports_errors
def models_list(debug: Debug = False) -> None:
    """List the models with a short name, and which are fetched."""
    from .hub import list_models

    for row in list_models():
        names = ", ".join((row.name, *row.aliases))
        fetched = f"fetched, {_megabytes(row.disk_bytes)}"
        state = fetched if row.is_present else f"{_megabytes(row.download_bytes)} to download"
        typer.echo(f"{names}: {row.summary} ({row.licence}; {state})")


@models_app.command("fetch")
@reports_errors
def models_fetch(name: str, debug: Debug = False) -> None:
    """Fetch a model into the cache folder, and say where it lies."""
    from .hub import fetch

    typer.echo(str(fetch(name)))


@models_app.command("path")
@reports_errors
def models_path(name: str, debug: Debug = False) -> None:
    """Say where a fetched model lies."""
    from .hub import list_models, named_model

    asked = named_model(name)
    row = next(row for row in list_models() if row.name == asked.name)
    if not row.is_present:
        raise ValueError(f"{row.name} is not fetched; run: branchwise models fetch {row.name}")
    typer.echo(str(row.path))


@bench_app.command("prompts")
@reports_errors
def bench(
    prompts: Annotated[Path, typer.Argument(help="One JSON object per line: question_id, category, topic, turns.")],
    methods: Annotated[
        str,
        typer.Option(
            help="From plain, tree, hf-plain, hf-lookup; comma between. tree:DRAFTER is another drafter, +model gives "
            "it the draft model, +KIND says how drafts grow: tree:mixed+model, tree:ngram+chain, tree:model+sampled."
        ),
    ] = "plain,tree,hf-plain",
    budgets: Annotated[str, typer.Option(help="Budgets of the methods that begin with tree.")] = "9,17,33",
    drafter: Drafter = "mixed",
    draft_model: DraftModel = None,
    head: Head = None,
    lookup_tokens: Annotated[int, typer.Option(help="prompt_lookup_num_tokens of hf-lookup.")] = 10,
    limit_per_category: Annotated[int | None, typer.Option(help="Prompts per category; its topics take turns.")] = None,
    categories: Annotated[str, typer.Option(help="Only these categories; comma between.")] = "",
    topics: Annotated[str, typer.Option(help="Only these topics; comma between.")] = "",
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Prompt i samples with seed + i.")] = 0,
    rule: Annotated[
        str, typer.Option(help="auto (greedy or match), traversal, ... of this library's methods.")
    ] = "auto",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the result, rows included, to a file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw tokens per step, speed and acceptance: a .png, .svg or .pdf.")
    ] = None,
    model: Model = "default",
    chat: Chat = None,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    debug: Debug = False,
) -> None:
    """Measure methods side by side on a file of prompts (first turns only).

    Methods alternate prompt by prompt; prefill is not counted. Tables come first, the last line is one JSON object.
    Exits with 1 when a method failed; its error is listed.
    """
    from .bench.job import Job, run_job
    from .bench.methods import TreeSpec, method_names
    from .bench.plots import plot_methods
    from .bench.prompts import choose_prompts, read_prompts
    from .bench.report import print_report
    from .bench.sampling import Sampling
    from .decode.attach import check_engine
    from .verify.registry import RULES

    names = method_names(words_of(methods), [number_or_auto(size) for size in words_of(budgets)])
    if rule not in ("auto", *RULES):
        raise ValueError(f"no rule is called {rule!r}; there are: auto, {', '.join(RULES)}")
    check_specs([TreeSpec.of(name, drafter) for name in names], draft_model, head)
    check_engine(engine_name, weights)
    chosen = choose_prompts(
        read_prompts(prompts),
        categories=words_of(categories),
        topics=words_of(topics),
        limit_per_category=limit_per_category,
    )
    job = Job(
        prompts=chosen,
        methods=names,
        drafter=drafter,
        head=head,
        lookup_tokens=lookup_tokens,
        sampling=Sampling(temperature),
        max_new_tokens=max_new_tokens,
        seed=seed,
        rule=rule,
        chat=chat,
        engine=engine_name,
        weights=weights,
    )
    check_results(json_path, plot)
    loaded, tokenizer = load_model(model, dtype, device, threads)
    options = drafter_options(draft_model, None, dtype, device, tokenizer)
    with counted("prompts", len(chosen)) as tell:
        record = run_job(job, loaded, tokenizer, model, options, draft_model, progress=tell)
    print_report(record)
    finish_bench(record, json_path, plot, plot_methods)


app.command("compare")(reports_errors(cli_compare.compare))
bench_app.command()(reports_errors(cli_roofline.attention))
bench_app.command()(reports_errors(cli_roofline.forward))
bench_app.command()(reports_errors(cli_peers.peers))
for name, command in cli_train.COMMANDS.items():
    train_app.command(name)(reports_errors(command))
app.command()(reports_errors(cli_plan.plan))
app.command()(reports_errors(cli_batch.batch))
app.command()(reports_errors(cli_tune.tune))


@app.command()
@reports_errors
def serve(
    model: Model = "default",
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    served_name: Annotated[str | None, typer.Option(help="What clients call the model.", show_default="MODEL")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="BRANCHWISE_API_KEY", help="What clients must present; better given by the environment."),
    ] = None,
    drafter: Drafter = "auto",
    draft_model: DraftModel = None,
    head: Head = None,
    rule: Annotated[str, typer.Option(help="auto, match, ... for requests that sample.")] = "auto",
    budget: Annotated[str, typer.Option(help="auto, or nodes per tree; 1 is plain decoding.")] = "auto",
    max_lanes: Annotated[int, typer.Option(help="Most requests served at once.")] = 16,
    pool_tokens: Annotated[int, typer.Option(help="Rows of keys and values over all requests.")] = 32_768,
    queue: Annotated[int, typer.Option(help="Most requests that wait.")] = 256,
    prefix_megabytes: Annotated[int, typer.Option(help="Memory for shared beginnings of prompts; 0 is off.")] = 256,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Longest prompt.", show_default="what the model takes")
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(help="Largest body of a request.")] = 4 * 2**20,
    max_streams: Annotated[int, typer.Option(help="Most completions in progress, waiting ones included.")] = 256,
    grace_seconds: Annotated[float, typer.Option(help="When ending, time for running requests to finish.")] = 30.0,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts and outputs to the log.")] = False,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = False,
    ray: cli_batch.Ray = False,
    replicas: Annotated[str, typer.Option(help="With --ray: MIN:MAX replicas, as many as there is work for.")] = "1",
    address: cli_batch.Address = None,
    replica_cpus: cli_batch.ReplicaCpus = 1.0,
    replica_gpus: cli_batch.ReplicaGpus = 0.0,
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    debug: Debug = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API does. Ends on Ctrl-C or SIGTERM, running requests first.

    The log on stderr has one JSON object per line and no text of prompts or outputs. With --ray replicas of the server
    run on a Ray cluster behind one address.
    """
    if is_follower(tensor_parallel):
        load_target(model, dtype, device, threads, tensor_parallel)
    check_choices(drafter, budget, draft_model, None, head)
    cli_batch.check_cluster_options(ray, tensor_parallel, replicas != "1", address, replica_cpus, replica_gpus)
    from .decode.attach import check_engine

    check_engine(engine_name, weights)
    try:
        from .serve.run import Server
    except ImportError as error:
        missing = error.name or "a package"
        raise ImportError(f"{missing} is missing; the server needs: pip install 'branchwise[serve]'") from None
    import logging

    from .decode.recipe import EngineRecipe
    from .draft.parts import drafter_parts
    from .serve.address import check_address
    from .serve.settings import ServerSettings

    check_address(host, port)
    settings = ServerSettings(
        model_name=served_name or shown_model(model),
        api_key=api_key,
        body_bytes=max_body_bytes,
        prompt_tokens=max_prompt_tokens,
        open_requests=max_streams,
        grace_seconds=grace_seconds,
        log_prompts=log_prompts,
    )
    recipe = EngineRecipe(
        model=os.path.expanduser(model),
        dtype=dtype,
        device=device,
        threads=threads,
        drafter=drafter,
        draft_model=draft_model,
        head=head,
        rule=rule,
        budget=number_or_auto(budget),
        max_lanes=max_lanes,
        pool_tokens=pool_tokens,
        queue_limit=queue,
        prefix_bytes=prefix_megabytes * 2**20,
        target_engine=engine_name,
        weights=weights,
    )
    if ray:
        from .serve.cluster import ClusterServer, Replicas, application

        shape = Replicas.parse(replicas, replica_cpus, replica_gpus)
        cluster = ClusterServer(application(recipe, settings, shape), host, port, address)
        typer.echo(f"branchwise: {settings.model_name} on http://{host}:{port}, {replicas} replicas", err=True)
        cluster.run()
        return
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("branchwise").setLevel(logging.INFO)
    target, tokenizer = load_target(model, dtype, device, threads, tensor_parallel, engine_name, weights)
    options = drafter_options(draft_model, None, dtype, str(target.device), tokenizer, head)
    engine = recipe.engine(target, tokenizer, options)
    parts = ", ".join(drafter_parts(engine.session.drafter))
    typer.echo(f"branchwise: {settings.model_name} on http://{host}:{port}, drafts by {parts}", err=True)
    Server(engine, settings, host, port).run()


@app.command("verify-lossless")
@reports_errors
def verify_lossless(
    rule: Annotated[str | None, typer.Argument(help="One rule on every kind of draft; without it, the table.")] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", "--drafter", help="Kinds of draft to play (repeatable); all by default."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The whole grid after the table, in some minutes.")] = False,
    debug: Debug = False,
) -> None:
    """Plays every draft and every fall of the coins on toy models; a lossless rule has distance 0."""
    from .losslessness import KINDS, render, run_grid, run_table
    from .verify.registry import RULES

    if rule is None and draft:
        raise ValueError("--draft goes with a rule: branchwise verify-lossless RULE --draft KIND")
    for given, known, what in (([rule] if rule else [], RULES, "rule"), (draft or [], KINDS, "kind of draft")):
        for name in given:
            if name not in known:
                raise ValueError(f"no {what} is called {name!r}; there are: {', '.join(known)}")
    if rule is not None and full:
        raise ValueError("--full is the grid of all rules; leave the rule out")
    rows = run_table(full) if rule is None else run_grid([rule], draft or tuple(KINDS))
    failed = []

    def watched() -> Iterator[Row]:
        for row in rows:
            if not (row.ok and row.reproduces):
                failed.append(row)
            yield row

    for line in render(watched()):  # each as soon as it is known
        typer.echo(line)
    if failed:
        raise typer.Exit(EXIT_FAILED)


@app.command("import-tree")
@reports_errors
def import_tree(
    file: Annotated[Path, typer.Argument(help="Medusa or EAGLE choices (JSON or Python), or a Sequoia growmap.")],
    out: Annotated[Path | None, typer.Option(help="Write the shape as JSON, for --drafter static --tree.")] = None,
    name: Annotated[str | None, typer.Option(help="Which list of a file with several.")] = None,
    complete: Annotated[bool, typer.Option("--complete", help="Add prefixes that index paths lack.")] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read a .pt file; tensors and lists only, no code of it is run.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Read the shape of a static tree from another program's file, check it and say what it looks like."""
    from .tree.peer_shapes import read_peer_shape

    shape = read_peer_shape(file, name=name, complete=complete, allow_pickle=allow_pickle)
    typer.echo(f"{len(shape)} nodes, root included; depth {shape.height}, {shape.leaves} leaves")
    typer.echo(f"nodes per level: {' '.join(map(str, shape.widths))}; ranks used: {max(shape.ranks) + 1}")
    if out is not None:
        shape.save(out)


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)


app.command()(reports_errors(cli_doctor.doctor))
add_examples(app)


# printing


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _draw_steps(generation: Generation, tokenizer: Any) -> None:
    from .show.text import draw_step, marks_for

    marks = marks_for(getattr(sys.stderr, "encoding", None))
    for number, record in enumerate(generation.records, start=1):
        typer.echo(draw_step(record, number, tokenizer, marks=marks) + "\n", err=True)


def _print_statistics(generation: Generation, comparison: Comparison | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from .show.generation import generation_line

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(generation_line(generation), style="dim"))
    if comparison is not None:
        console.print(Text(comparison.line(), style="bold"))


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
