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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from . import cli_batch, cli_compare, cli_doctor, cli_plan, cli_roofline, cli_show, cli_train, cli_tune
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
    counted,
    is_follower,
    load_model,
    load_target,
)

if TYPE_CHECKING:
    from .bench.compare import Comparison
    from .bench.methods import TreeSpec
    from .decode import Generation
    from .losslessness import Row
    from .verify import Grammar

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
    help="Measure: `branchwise bench FILE` (short for `bench prompts FILE`), `bench attention`, `bench forward`.",
    cls=cli_roofline.DefaultsToPrompts,
)
app.add_typer(bench_app, name="bench")
train_app = typer.Typer(help="Train draft heads: first data, then a head, then figures.", no_args_is_help=True)
app.add_typer(train_app, name="train")

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])

# options that several commands of this file share
Temperature = Annotated[float, typer.Option(help="0 is greedy decoding.")]
MaxNewTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Drafter = Annotated[str, typer.Option(help="auto, none, ngram, mixed, model, eagle, medusa, block, early_exit, ...")]
DraftModel = Annotated[
    str | None, typer.Option(help="A smaller model that drafts, alone (drafter model) or with others (mixed, auto).")
]
Head = Annotated[
    str | None, typer.Option(help="Folder of a trained head: for eagle, medusa and block, or in the tree of mixed.")
]
DraftTree = Annotated[
    str | None,
    typer.Option(
        help="How drafts grow: chain, best_first; with a draft model also dynamic, sampled.",
        show_default="dynamic with a draft model, else best_first",
    ),
]
Chat = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Use the chat template or not.", show_default="chat if there is a template"),
]


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

    return run  # type: ignore[return-value]


@app.command()
@reports_errors
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads it from stdin.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    model: Model = "default",
    chat: Chat = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    drafter: Drafter = "auto",
    draft_model: DraftModel = None,
    draft_tree: DraftTree = None,
    head: Head = None,
    exit_layer: Annotated[
        int | None,
        typer.Option(help="With --drafter early_exit: so many first layers draft.", show_default="a quarter of them"),
    ] = None,
    rule: Annotated[
        str, typer.Option(help="auto, greedy, match, rejection, traversal, ...; typical is lossy: it changes the law.")
    ] = "auto",
    budget: Annotated[str, typer.Option(help="Most nodes of a tree, root included; 1 is plain decoding.")] = "auto",
    tree: Annotated[
        Path | None, typer.Option(help="The shape that --drafter static drafts: a file of branchwise import-tree.")
    ] = None,
    suffix_store: Annotated[
        Path | None, typer.Option(help="Earlier texts for --drafter suffix: read if there, written in the end.")
    ] = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k best tokens. Needs --temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the best of this mass. Needs --temperature.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Drop all below this part of the best. Needs --temperature.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 makes seen tokens less likely.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same sample; greedy output needs none.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; may be repeated.")] = None,
    json_schema: Annotated[
        str | None, typer.Option(help="Write JSON that is valid for this schema: a file or the schema itself.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="Write text that matches this regular expression.")] = None,
    ebnf: Annotated[str | None, typer.Option(help="Write text of this grammar: a file or the grammar itself.")] = None,
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
    text = _read_prompt(prompt, file)
    from .bench.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    stops = tuple(stop or ())
    if "" in stops:
        raise ValueError("a stop string must not be empty")
    if max_new_tokens < 1:
        raise ValueError(f"max-new-tokens must be >= 1, got {max_new_tokens}")
    if logprobs is not None and not as_json:
        raise ValueError("--logprobs are part of the JSON object: add --json")
    files = _read_drafter_files(drafter, tree, suffix_store)
    if compare and suffix_store is not None:
        raise ValueError("--compare starts every run with a drafter that has seen nothing; leave --suffix-store out")
    _check_choices(drafter, budget, draft_model, draft_tree, head)
    from .decode.attach import check_engine

    check_engine(engine_name, weights)
    if exit_layer is not None and drafter != "early_exit":
        raise ValueError("--exit-layer goes with --drafter early_exit")
    grammar = _read_grammar(json_schema, regex, ebnf)
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
    options = files | _drafter_options(draft_model, draft_tree, dtype, str(target.device), tokenizer)
    if head is not None:
        options["head"] = head
    if exit_layer is not None:
        options["exit_layer"] = exit_layer
    make = functools.partial(make_drafter, drafter, target=target, **options)
    if compare:
        comparison = compare_runs(order, target, tokenizer, make, rule, budget, live)
        generation = comparison.drafts
    else:
        generation = order.run(Speculator(target, tokenizer, drafter=make(), rule=rule, budget=budget), live)

    if as_json:
        record = generation_record(generation)
        record |= {"model": _shown_model(model), "drafter": drafter, "rule": rule}
        record |= {"budget": _number_or_auto(budget), "seed": seed}
        record |= {"engine": engine_name, "weights": weights}
        record["lossless"] = rule not in RULES or RULES[rule].lossless
        if draft_model is not None:
            record["draft_model"] = _shown_model(draft_model)
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
    from .bench.plots import check_plotting, plot_methods
    from .bench.prompts import choose_prompts, read_prompts
    from .bench.report import check_writable, last_line, print_report, write_json
    from .bench.sampling import Sampling
    from .decode.attach import check_engine
    from .verify.registry import RULES

    names = method_names(_split(methods), [_number_or_auto(size) for size in _split(budgets)])
    if rule not in ("auto", *RULES):
        raise ValueError(f"no rule is called {rule!r}; there are: auto, {', '.join(RULES)}")
    _check_specs([TreeSpec.of(name, drafter) for name in names], draft_model, head)
    check_engine(engine_name, weights)
    chosen = choose_prompts(
        read_prompts(prompts),
        categories=_split(categories),
        topics=_split(topics),
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
    for path in (json_path, plot):
        if path is not None:
            check_writable(path)
    if plot is not None:
        check_plotting()
    loaded, tokenizer = load_model(model, dtype, device, threads)
    options = _drafter_options(draft_model, None, dtype, device, tokenizer)
    with counted("prompts", len(chosen)) as tell:
        record = run_job(job, loaded, tokenizer, model, options, draft_model, progress=tell)
    print_report(record)
    if json_path is not None:
        write_json(record, json_path)
    if plot is not None:
        plot_methods(record, plot)
    typer.echo(last_line(record))
    if record["interrupted"]:
        raise KeyboardInterrupt
    if any(method["error"] for method in record["methods"].values()):
        raise typer.Exit(EXIT_FAILED)


app.command("compare")(reports_errors(cli_compare.compare))
bench_app.command()(reports_errors(cli_roofline.attention))
bench_app.command()(reports_errors(cli_roofline.forward))
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
    _check_choices(drafter, budget, draft_model, None, head)
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
    from .serve.address import check_address
    from .serve.settings import ServerSettings

    check_address(host, port)
    settings = ServerSettings(
        model_name=served_name or _shown_model(model),
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
        budget=_number_or_auto(budget),
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
    options = _drafter_options(draft_model, None, dtype, str(target.device), tokenizer)
    if head is not None:
        options["head"] = head
    engine = recipe.engine(target, tokenizer, options)
    typer.echo(f"branchwise: {settings.model_name} on http://{host}:{port}", err=True)
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


# reading


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from whichever place it was given; one newline at the end of a file or of stdin does not count."""
    if prompt is not None and file is not None:
        raise ValueError("give the prompt either as an argument or with --file, not both")
    if file is not None:
        text = _read_text(file).removesuffix("\n")
    elif prompt is None or prompt == "-":
        if prompt is None and sys.stdin.isatty():
            raise ValueError("no prompt: give it as an argument, with --file, or on stdin")
        text = _as_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    else:
        # bytes of an argument that are no UTF-8 arrive as lone surrogates
        text = _as_text(prompt.encode("utf-8", "surrogateescape"), "the prompt")
    if not text:
        raise ValueError("the prompt is empty: give at least one character as an argument, with --file, or on stdin")
    return text


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text (byte {error.start}); convert it first") from None


def _as_text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not UTF-8 text (byte {error.start}); convert it first") from None


def _read_grammar(json_schema: str | None, regex: str | None, ebnf: str | None) -> Grammar | None:
    """The grammar from whichever option was given."""
    options = {"json-schema": json_schema, "regex": regex, "ebnf": ebnf}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"--{given[0]} and --{given[1]} are two grammars; give one")
    if not given:
        return None
    from .verify.grammar import Grammar

    if json_schema is not None:
        return Grammar.from_json_schema(_text_or_file(json_schema))
    if ebnf is not None:
        return Grammar.from_ebnf(_text_or_file(ebnf))
    assert regex is not None
    return Grammar.from_regex(regex)


def _text_or_file(word: str) -> str:
    """What stands in the file called ``word``; without one, ``word`` itself. A grammar is hardly a file's name."""
    try:
        is_file = Path(word).expanduser().is_file()
    except OSError:  # longer than a name may be
        is_file = False
    return _read_text(Path(word).expanduser()) if is_file else word


def _read_drafter_files(drafter: str, tree: Path | None, suffix_store: Path | None) -> dict[str, Any]:
    """Options of the named drafter that come from files, which are read before a model is loaded."""
    for option, given, wanted in (("--tree", tree, "static"), ("--suffix-store", suffix_store, "suffix")):
        if given is not None and drafter != wanted:
            raise ValueError(f"{option} goes with --drafter {wanted}, not with {drafter}")
    if tree is not None:
        from .tree import StaticShape

        return {"shape": StaticShape.load(tree)}
    if suffix_store is not None:
        from .draft import SuffixStore

        if not suffix_store.expanduser().parent.is_dir():
            raise ValueError(f"there is no folder {str(suffix_store.parent)!r} for the suffix store")
        return {"store": SuffixStore.load(suffix_store) if suffix_store.expanduser().exists() else SuffixStore()}
    return {}


def _check_choices(
    drafter: str, budget: str, draft_model: str | None = None, draft_tree: str | None = None, head: str | None = None
) -> None:
    """Finds a wrong name or number before a model is loaded."""
    from .draft import TARGET_DRAFTERS, make_drafter
    from .draft.registry import HEAD_DRAFTERS, WITH_HEAD, check_drafter_name
    from .draft.tree_kind import tree_kind
    from .tune.budget import make_budget

    make_budget(budget)
    check_drafter_name(drafter, with_model=draft_model is not None)
    if head is not None and drafter not in HEAD_DRAFTERS + WITH_HEAD:
        takers = ", ".join(HEAD_DRAFTERS + WITH_HEAD)
        raise ValueError(f"--drafter {drafter} takes no head; those that take one are: {takers}")
    if head is not None and not Path(head).expanduser().is_dir():
        raise ValueError(f"no folder {head!r} with a head in it")
    if drafter in HEAD_DRAFTERS:
        _check_head(drafter, head, draft_tree)
    elif drafter in TARGET_DRAFTERS:
        if draft_tree is not None:
            raise ValueError(f"drafter {drafter!r} grows dynamic trees; leave --draft-tree out")
    elif draft_model is None:
        make_drafter(drafter, **({} if draft_tree is None else {"tree": draft_tree}))
    elif draft_tree is not None:
        tree_kind(draft_tree)


def _check_head(drafter: str, head: str | None, draft_tree: str | None) -> None:
    if head is None:
        raise ValueError(f"--drafter {drafter} needs --head FOLDER")
    if draft_tree is not None:
        raise ValueError(f"drafter {drafter!r} grows its own trees; leave {draft_tree!r} out")


def _check_specs(specs: Sequence[TreeSpec | None], draft_model: str | None, head: str | None) -> None:
    """The same for the methods of a benchmark."""
    trees = [spec for spec in specs if spec is not None]
    for spec in trees:
        own_model, own_head = draft_model if spec.with_model else None, head if spec.with_head else None
        _check_choices(spec.drafter, spec.budget, own_model, spec.kind, own_head)
        if spec.with_model and draft_model is None:
            raise ValueError(f"method tree:{spec.drafter}+model needs --draft-model NAME")
    if draft_model is not None and not any(spec.with_model for spec in trees):
        raise ValueError("no method drafts with --draft-model; name one: tree:model or tree:mixed+model")
    if head is not None and not any(spec.with_head for spec in trees):
        raise ValueError("no method drafts with --head; name one: tree:eagle or tree:mixed+head")


def _drafter_options(
    draft_model: str | None, draft_tree: str | None, dtype: str, device: str | None, tokenizer: Any
) -> dict[str, Any]:
    """The options of a named drafter; a draft model is loaded once, as the target was, and brings its tokenizer."""
    options: dict[str, Any] = {} if draft_tree is None else {"tree": draft_tree}
    if draft_model is not None:
        loaded, own_tokenizer = load_model(draft_model, dtype, device, None)
        options |= {"draft_model": loaded, "draft_tokenizer": own_tokenizer, "target_tokenizer": tokenizer}
    return options


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _number_or_auto(budget: str) -> int | str:
    return int(budget) if budget.lstrip("-").isdigit() else budget


# printing


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _shown_model(model: str) -> str:
    return Path(model).name if os.path.isabs(model) else model


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
