"""The commands `branchwise train ...`: read arguments, call `train`, print.

`cli` gives them their names and turns their errors into messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_options import Debug, Device, Dtype, EngineName, Model, Threads, Weights, load_model, words_of

if TYPE_CHECKING:
    from .train.settings import TrainingSettings
    from .train.training import Options

Out = Annotated[Path, typer.Option(help="Folder for the result; an interrupted run goes on from what is there.")]


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
    longest: Annotated[int, typer.Option(help="Most tokens of a dialogue, or of a piece of --text.")] = 1536,
    lanes: Annotated[int, typer.Option(help="Dialogues written at once.")] = 96,
    drafter: Annotated[str, typer.Option(help="Drafts while writing; pays with few lanes only.")] = "none",
    budget: Annotated[int, typer.Option(help="Most nodes of a draft tree, root included.")] = 1,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    debug: Debug = False,
) -> None:
    """Write training data: the target asks itself questions and answers them.

    Data are kept in shards; what is finished stays after an interruption, and the same command goes on.
    """
    from .decode.attach import check_engine
    from .train.commands import DataOrder, write_data
    from .train.plans import WritingSettings, read_prompts_file

    if prompts is not None and text:
        raise ValueError("--prompts and --text are two sources of data; give one, and the other with another --out")
    check_engine(engine_name, weights)
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
        engine=engine_name,
        weights=weights,
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


Data = Annotated[list[Path], typer.Option(help="Folder that `train data` wrote; may be repeated.")]
Minutes = Annotated[float | None, typer.Option(help="Train for so long in all; the learning rate follows the clock.")]
Steps = Annotated[int | None, typer.Option(help="Train for so many steps; a resumed training is exactly the same.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out, if there is one.")]
DraftVocabulary = Annotated[
    str, typer.Option(help="Tokens the head can draft: auto (covers 98.5% of held-out answers), full, or a number.")
]
Features = Annotated[
    str, typer.Option(help="The target's hidden states: keep (on disk beside the data) or recompute (each time).")
]
BatchTokens = Annotated[int, typer.Option(help="About how many tokens per batch.")]
Accumulate = Annotated[int, typer.Option(help="Batches per step.")]
Longest = Annotated[int, typer.Option(help="Longer sequences are cut.")]
LearningRate = Annotated[float, typer.Option(help="The peak, reached after the warm-up.")]
WarmUp = Annotated[int, typer.Option(help="Steps until the peak.")]
Ema = Annotated[float, typer.Option(help="Decay of the average of the weights that is exported; 0: the weights.")]
QuestionWeight = Annotated[
    float, typer.Option(help="What a user's token counts for, beside 1 of an answer's; 0: answers alone are learned.")
]
Seed = Annotated[int, typer.Option(help="Of initial weights, order and anchors.")]


def eagle3(
    out: Out,
    data: Data,
    target: Model = "default",
    minutes: Minutes = None,
    steps: Steps = None,
    resume: Resume = False,
    unroll: Annotated[int, typer.Option(help="Steps the head runs on its own output while training.")] = 3,
    published_only: Annotated[
        bool, typer.Option("--published-only", help="The paper's head without this project's additions.")
    ] = False,
    start: Annotated[
        str, typer.Option(help="Begin from this head of the same target; its draft vocabulary is kept.")
    ] = "",
    draft_vocabulary: DraftVocabulary = "auto",
    features: Features = "keep",
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    batch_tokens: BatchTokens = 1024,
    accumulate: Accumulate = 1,
    longest: Longest = 1536,
    learning_rate: LearningRate = 2e-3,
    warm_up: WarmUp = 40,
    ema: Ema = 0.0,
    question_weight: QuestionWeight = 0.5,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Train an EAGLE-3 head: one decoder layer that continues the target's hidden states."""
    from .train.eagle3 import Eagle3Options
    from .train.settings import TrainingSettings

    settings = TrainingSettings(
        *(steps, _seconds(minutes), batch_tokens, accumulate, longest, learning_rate, warm_up),
        ema=ema,
        question_weight=question_weight,
        seed=seed,
    )
    options = Eagle3Options(unroll, published_only, start)
    _train(
        options,
        settings,
        out,
        data,
        target,
        resume,
        draft_vocabulary,
        features,
        engine_name,
        weights,
        dtype,
        device,
        threads,
    )


def block(
    out: Out,
    data: Data,
    target: Model = "default",
    minutes: Minutes = None,
    steps: Steps = None,
    resume: Resume = False,
    layers: Annotated[int, typer.Option(help="Decoder layers of the head.")] = 2,
    block_size: Annotated[int, typer.Option(help="Positions of a block; one less is drafted.")] = 8,
    causal: Annotated[bool, typer.Option("--causal", help="Positions of a block see only earlier ones.")] = False,
    anchors: Annotated[int, typer.Option(help="Blocks per text and batch.")] = 32,
    features: Features = "keep",
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    batch_tokens: BatchTokens = 1024,
    accumulate: Accumulate = 1,
    longest: Longest = 1536,
    learning_rate: LearningRate = 2e-3,
    warm_up: WarmUp = 40,
    ema: Ema = 0.0,
    question_weight: QuestionWeight = 0.5,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Train a block head (DFlash; causal: JetSpec): a few layers that draft a whole block in one forward."""
    from .train.block import BlockOptions
    from .train.settings import TrainingSettings

    settings = TrainingSettings(
        *(steps, _seconds(minutes), batch_tokens, accumulate, longest, learning_rate, warm_up),
        ema=ema,
        question_weight=question_weight,
        seed=seed,
    )
    options = BlockOptions(layers, block_size, causal, anchors)
    _train(options, settings, out, data, target, resume, "full", features, engine_name, weights, dtype, device, threads)


def medusa(
    out: Out,
    data: Data,
    target: Model = "default",
    minutes: Minutes = None,
    steps: Steps = None,
    resume: Resume = False,
    heads: Annotated[int, typer.Option(help="Tokens that are guessed.")] = 4,
    blocks: Annotated[int, typer.Option(help="Residual blocks per head.")] = 1,
    features: Features = "keep",
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    batch_tokens: BatchTokens = 1024,
    accumulate: Accumulate = 1,
    longest: Longest = 1536,
    learning_rate: LearningRate = 1e-3,
    warm_up: WarmUp = 40,
    ema: Ema = 0.0,
    question_weight: QuestionWeight = 0.5,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Train Medusa's heads: one small network per token ahead, on the last hidden state."""
    from .train.medusa import MedusaOptions
    from .train.settings import TrainingSettings

    settings = TrainingSettings(
        *(steps, _seconds(minutes), batch_tokens, accumulate, longest, learning_rate, warm_up),
        ema=ema,
        question_weight=question_weight,
        seed=seed,
    )
    options = MedusaOptions(heads, blocks)
    _train(options, settings, out, data, target, resume, "full", features, engine_name, weights, dtype, device, threads)


def evaluate(
    head: Annotated[Path, typer.Option(help="Folder of the head; the result is written there.")],
    target: Model = "default",
    prompts: Annotated[
        Path | None,
        typer.Option(help="Questions never trained on: as for `bench` (by category) or `train data`."),
    ] = None,
    data: Annotated[list[Path] | None, typer.Option(help="Take the held-out questions of this folder.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Most questions.", show_default="24 of held-out ones, all of a file")
    ] = None,
    limit_per_category: Annotated[int | None, typer.Option(help="Most of one category; its topics take turns.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens per answer.")] = 128,
    budgets: Annotated[str, typer.Option(help="Nodes of the trees, root included; comma between.")] = "9,17,33,65",
    levels: Annotated[str, typer.Option(help="Levels of an EAGLE head's trees; auto: as many as pay.")] = "auto",
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    engine_name: EngineName = "transformers",
    weights: Weights = None,
    debug: Debug = False,
) -> None:
    """Measure a head: tokens per step and per second, alone and with free drafts, beside plain decoding.

    Also acceptance by depth and rank, what its vocabulary covers, and the time of drafting.
    """
    from .decode.attach import check_engine
    from .hub import resolve
    from .train.commands import EvaluationOrder, evaluate_head
    from .train.questions import read_questions

    if (prompts is None) == (not data):
        raise ValueError("give --prompts or --data, one of the two: where the questions come from")
    if (limit or 1) < 1 or max_new_tokens < 2:
        raise ValueError(f"limit must be >= 1 and max-new-tokens >= 2, got {limit} and {max_new_tokens}")
    if limit_per_category is not None and prompts is None:
        raise ValueError("--limit-per-category goes with --prompts")
    check_engine(engine_name, weights)
    order = EvaluationOrder(
        head=head,
        prompts=tuple(read_questions(prompts, limit, limit_per_category)) if prompts is not None else (),
        data=tuple(data or ()),
        limit=24 if limit is None else limit,
        max_new_tokens=max_new_tokens,
        budgets=_budgets(budgets),
        levels=int(levels) if levels.isdigit() else levels,
        engine=engine_name,
        weights=weights,
        target_name=(target, resolve(target)),
    )
    model, tokenizer = load_model(target, dtype, device, threads)
    for line in evaluate_head(order, model, tokenizer):
        typer.echo(line)


def _budgets(text: str) -> tuple[int, ...]:
    words = words_of(text)
    if not words or not all(word.isdigit() and int(word) >= 2 for word in words):
        raise ValueError(f"--budgets are numbers of nodes from 2 on with commas between, got {text!r}")
    return tuple(sorted({int(word) for word in words}))


def ship(
    head: Annotated[Path, typer.Option(help="Folder of a trained head.")],
    out: Annotated[Path, typer.Option(help="Folder for the compact head; its last part becomes the head's name.")],
    data: Annotated[list[Path], typer.Option(help="Folder whose held-out dialogues drafts are compared on.")],
    target: Model = "default",
    layers: Annotated[str, typer.Option(help="The layer in int8 or bf16; auto: int8 if drafts stay.")] = "auto",
    dtype: Dtype = "auto",
    device: Device = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Make a trained head small, and findable: `auto` drafts with it wherever its target is used.

    Put the folder into the package's `heads`, or name the folder around it in $BRANCHWISE_HEADS.
    """
    from .hub import resolve
    from .train.commands import ship_head
    from .train.ship import ShippingOrder

    order = ShippingOrder(head, out, layers, (target, resolve(target)))
    model, tokenizer = load_model(target, dtype, device, threads)
    for line in ship_head(order, tuple(data), model, tokenizer):
        typer.echo(line)


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60 * minutes


def _train(
    options: Options,
    settings: TrainingSettings,
    out: Path,
    data: list[Path],
    target: str,
    resume: bool,
    draft_vocabulary: str,
    features: str,
    engine_name: str,
    weights: str | None,
    dtype: str,
    device: str | None,
    threads: int | None,
) -> None:
    from .decode.attach import check_engine
    from .hub import resolve
    from .train.commands import train_head
    from .train.training import TrainingOrder

    if features not in ("keep", "recompute"):
        raise ValueError(f"--features is keep or recompute, not {features!r}")
    check_engine(engine_name, weights)
    size: str | int = int(draft_vocabulary) if draft_vocabulary.isdigit() else draft_vocabulary
    model, tokenizer = load_model(target, dtype, device, threads)
    order = TrainingOrder(
        out,
        tuple(data),
        options,
        settings,
        draft_vocabulary=size,
        keep_features=features == "keep",
        engine=engine_name,
        weights=weights,
        resume=resume,
        target_name=(target, resolve(target)),
    )
    typer.echo(train_head(order, model, tokenizer))


#: name -> command
COMMANDS: dict[str, Callable[..., None]] = {
    "data": data,
    "eagle3": eagle3,
    "block": block,
    "medusa": medusa,
    "evaluate": evaluate,
    "ship": ship,
}
