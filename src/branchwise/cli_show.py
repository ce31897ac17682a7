"""The command `branchwise show`: reads arguments, generates once, hands the generation to `show`.

`cli` gives it its name and turns its errors into messages.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_options import Debug, Device, Dtype, Model, Threads, load_model

if TYPE_CHECKING:
    from .decode import Generation

#: what ``--out`` may end in
SUFFIXES = (".html", ".svg", ".png")


def show(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads it from stdin.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="An interactive page (.html), or one step as a picture (.svg, .png).", show_default="a temporary page"
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(help="The step of the picture, or shown first, from 1.", show_default="the longest accepted run"),
    ] = None,
    as_text: Annotated[
        bool, typer.Option("--text", help="Draw every step (or --step) in the terminal; no page unless --out asks.")
    ] = False,
    model: Model = "default",
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template or not.", show_default="chat if there is a template"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    drafter: Annotated[
        str, typer.Option(help="auto, none, ngram, mixed, model, eagle, medusa, block, early_exit, ...")
    ] = "auto",
    draft_model: Annotated[
        str | None,
        typer.Option(help="A smaller model that drafts, alone (drafter model) or with others (mixed, auto)."),
    ] = None,
    draft_tree: Annotated[
        str | None,
        typer.Option(
            help="How drafts grow: chain, best_first; with a draft model also dynamic, sampled.",
            show_default="dynamic with a draft model, else best_first",
        ),
    ] = None,
    head: Annotated[str | None, typer.Option(help="Folder of the trained head, for eagle, medusa and block.")] = None,
    exit_layer: Annotated[
        int | None,
        typer.Option(help="With --drafter early_exit: so many first layers draft.", show_default="a quarter of them"),
    ] = None,
    tree: Annotated[
        Path | None, typer.Option(help="The shape that --drafter static drafts: a file of branchwise import-tree.")
    ] = None,
    rule: Annotated[str, typer.Option(help="auto, greedy, match, rejection, traversal, ...")] = "auto",
    budget: Annotated[str, typer.Option(help="Most nodes of a tree, root included; or auto.")] = "17",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy decoding.")] = 0.0,
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
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Show one generation step by step: what was drafted, what the target said about it, what was kept.

    The page is one file that needs no network. The text is what `branchwise generate` would write.
    """
    # that module imports this one
    from .cli import (
        _check_choices,
        _drafter_options,
        _number_or_auto,
        _read_drafter_files,
        _read_grammar,
        _read_prompt,
        _shown_model,
    )

    text = _read_prompt(prompt, file)
    _check_out(out)
    if step is not None and step < 1:
        raise ValueError(f"--step counts from 1, got {step}")
    if max_new_tokens < 1:
        raise ValueError(f"max-new-tokens must be >= 1, got {max_new_tokens}")
    stops = tuple(stop or ())
    if "" in stops:
        raise ValueError("a stop string must not be empty")
    from .bench.compare import Order
    from .bench.prompts import encode_prompt
    from .bench.sampling import Sampling
    from .decode import Speculator
    from .draft import make_drafter
    from .target import HuggingFaceTarget

    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    files = _read_drafter_files(drafter, tree, None)
    _check_choices(drafter, budget, draft_model, draft_tree, head)
    if exit_layer is not None and drafter != "early_exit":
        raise ValueError("--exit-layer goes with --drafter early_exit")
    grammar = _read_grammar(json_schema, regex, ebnf)
    loaded, tokenizer = load_model(model, dtype, device, threads)
    target = HuggingFaceTarget(loaded)
    options = files | _drafter_options(draft_model, draft_tree, dtype, device, tokenizer)
    if head is not None:
        options["head"] = head
    if exit_layer is not None:
        options["exit_layer"] = exit_layer
    make = partial(make_drafter, drafter, target=target, **options)
    ids = encode_prompt(tokenizer, text, chat=chat, system=system)
    order = Order(ids, sampling, max_new_tokens, stops, seed, grammar, target_probabilities=True)
    generation = order.run(Speculator(target, tokenizer, drafter=make(), rule=rule, budget=budget))

    number = _chosen(generation, step)
    if as_text:
        _print_steps(generation, None if step is None else number)
    facts = {"model": _shown_model(model), "drafter": drafter, "rule": rule}
    size = _number_or_auto(budget)
    if out is not None or not as_text:
        _write(generation, number, out, facts, size if isinstance(size, int) else None)


def _check_out(out: Path | None) -> None:
    """Finds a file that cannot be written before a model is loaded."""
    if out is None:
        return
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out writes {', '.join(SUFFIXES)}, got {out.name!r}")
    if not out.expanduser().resolve().parent.is_dir():
        raise ValueError(f"there is no folder {str(out.parent)!r} for {out.name!r}")
    if out.suffix.lower() == ".png":
        from .show.picture import check_pictures

        check_pictures()


def _chosen(generation: Generation, step: int | None) -> int:
    """The step asked for, from 0; otherwise the first of those that accepted most."""
    records = generation.records
    if step is not None:
        if step > len(records):
            raise ValueError(f"there is no step {step}: the generation took {len(records)}")
        return step - 1
    return max(range(len(records)), key=lambda number: (len(records[number].tokens), -number))


def _print_steps(generation: Generation, only: int | None) -> None:
    from .show.generation import generation_line
    from .show.text import draw_step, marks_for

    marks = marks_for(getattr(sys.stdout, "encoding", None))
    for number, record in enumerate(generation.records):
        if only is None or number == only:
            typer.echo(draw_step(record, number + 1, generation.tokenizer, marks=marks) + "\n")
    typer.echo(generation_line(generation), err=True)


def _write(generation: Generation, number: int, out: Path | None, facts: dict[str, Any], budget: int | None) -> None:
    from .show.display import open_on_desktop, write_page
    from .show.page import page_html
    from .show.step_json import generation_step

    suffix = ".html" if out is None else out.suffix.lower()
    if suffix == ".html":
        written = write_page(page_html(generation, facts=facts, budget=budget, first=number), out)
        if out is None:
            open_on_desktop(written)
    else:
        assert out is not None
        written = out.expanduser()
        drawn = generation_step(generation, number, budget)
        title = f"Step {number + 1} of {generation.steps}"
        if suffix == ".svg":
            from .show.svg import step_svg

            written.write_text(step_svg(drawn, title), encoding="utf-8")
        else:
            from .show.picture import write_png

            write_png(drawn, written, title)
    typer.echo(str(written))
