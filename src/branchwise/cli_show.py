"""The command `branchwise show`: reads arguments, generates once, hands the generation to `show`.

`cli` gives it its name and turns its errors into messages.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_drafting import (
    Drafter,
    DraftModel,
    DraftTree,
    ExitLayer,
    Head,
    TreeFile,
    check_choices,
    drafter_options,
    number_or_auto,
    read_drafter_files,
)
from .cli_options import Debug, Device, Dtype, Model, Threads, load_model, shown_model
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
    from .decode import Generation

#: what ``--out`` may end in
SUFFIXES = (".html", ".svg", ".png")


def show(
    prompt: Prompt = None,
    file: PromptFile = None,
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
    chat: Chat = None,
    system: System = None,
    drafter: Drafter = "auto",
    draft_model: DraftModel = None,
    draft_tree: DraftTree = None,
    head: Head = None,
    exit_layer: ExitLayer = None,
    tree: TreeFile = None,
    rule: Annotated[str, typer.Option(help="auto, greedy, match, rejection, traversal, ...")] = "auto",
    budget: Annotated[str, typer.Option(help="Most nodes of a tree, root included; or auto.")] = "17",
    max_new_tokens: MaxNewTokens = 64,
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
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Show one generation step by step: what was drafted, what the target said about it, what was kept.

    The page is one file that needs no network. The text is what `branchwise generate` would write.
    """
    text = read_prompt(prompt, file)
    _check_out(out)
    if step is not None and step < 1:
        raise ValueError(f"--step counts from 1, got {step}")
    check_new_tokens(max_new_tokens)
    stops = stop_strings(stop)
    from .bench.compare import Order
    from .bench.prompts import encode_prompt
    from .bench.sampling import Sampling
    from .decode import Speculator
    from .draft import make_drafter
    from .target import HuggingFaceTarget

    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    files = read_drafter_files(drafter, tree, None)
    check_choices(drafter, budget, draft_model, draft_tree, head, exit_layer)
    grammar = read_grammar(json_schema, regex, ebnf)
    loaded, tokenizer = load_model(model, dtype, device, threads)
    target = HuggingFaceTarget(loaded)
    options = files | drafter_options(draft_model, draft_tree, dtype, device, tokenizer, head, exit_layer)
    make = partial(make_drafter, drafter, target=target, **options)
    ids = encode_prompt(tokenizer, text, chat=chat, system=system)
    order = Order(ids, sampling, max_new_tokens, stops, seed, grammar, target_probabilities=True)
    generation = order.run(Speculator(target, tokenizer, drafter=make(), rule=rule, budget=budget))

    number = _chosen(generation, step)
    if as_text:
        _print_steps(generation, None if step is None else number)
    facts = {"model": shown_model(model), "drafter": drafter, "rule": rule}
    size = number_or_auto(budget)
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
