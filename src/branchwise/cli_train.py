"""The commands of ``branchwise train``: reads arguments, calls the training room, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_shared import Debug, Device, Dtype, Model, Threads, load_model, reports_errors

train_app = typer.Typer(help="Train draft heads: first data, then a head, then figures.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder for the result; an interrupted run goes on from what is there.")]


@train_app.command()
@reports_errors
def data(
    out: Out,
    target: Model = "default",
    tokens: Annotated[str, typer.Option(help="Tokens of answers to write in all: 300000, 300k, 1.5M.")] = "1M",
    prompts: Annotated[
        Path | None, typer.Option(help="Answer these (one a line, or .jsonl) instead of questions of its own.")
    ] = None,
    text: Annotated[list[Path] | None, typer.Option(help="Take this text file as it is; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of openers and sampling.")] = 0,
    greedy_share: Annotated[float, typer.Option(help="Share of answers without chance.")] = 0.6,
    temperature: Annotated[float, typer.Option(help="Of the other answers.")] = 0.7,
    answer_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 320,
    longest: Annotated[int, typer.Option(help="Most tokens of a dialogue, or of a piece of --text.")] = 1024,
    lanes: Annotated[int, typer.Option(help="Dialogues written at once.")] = 96,
    drafter: Annotated[str, typer.Option(help="Drafts while writing; pays with few lanes only.")] = "none",
    budget: Annotated[int, typer.Option(help="Most nodes of a draft tree, root included.")] = 1,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Write training data: the target asks itself questions and answers them.

    Data are kept in shards; what is finished stays after an interruption, and the same command goes on.
    """
    from .train.commands import DataOrder, write_data
    from .train.plans import WritingSettings, read_prompts_file

    if prompts is not None and text:
        raise ValueError("--prompts and --text are two sources of data; give one, and the other with another --out")
    settings = WritingSettings(seed, greedy_share, temperature, answer_tokens, longest)
    order = DataOrder(
        folder=out,
        settings=settings,
        answer_tokens=parse_count(tokens),
        prompts=tuple(read_prompts_file(prompts)) if prompts is not None else (),
        texts=tuple(text or ()),
        lanes=lanes,
        drafter=drafter,
        budget=budget,
    )
    model, tokenizer = load_model(target, dtype, device, threads)
    typer.echo(write_data(order, model, tokenizer))


def parse_count(text: str) -> int:
    """300000, 300k or 1.5M as a number."""
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    try:
        count = round(float(text[:-1] if scale > 1 else text) * scale)
    except ValueError:
        raise ValueError(f"{text!r} is no number of tokens; write 300000, 300k or 1.5M") from None
    if count < 1:
        raise ValueError(f"there must be at least 1 token, got {text}")
    return count
