"""What the commands of ``branchwise train`` do once a model is loaded. Puts the parts of this room together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..bench.prompts import Prompt
from ..bench.provenance import model_facts, provenance
from ..decode.attach import as_target
from ..draft.registry import make_drafter
from .chat_frame import ChatFrame
from .corpus import read_corpus
from .evaluate import BUDGETS, evaluate
from .evaluation_report import table, write_report
from .head_folder import HeadFolder
from .identity import Identity
from .plans import WritingSettings
from .progress import progress
from .questions import encoded, held_out_questions
from .ship import ShippingOrder, ship
from .texts import write_texts
from .training import TrainingOrder, train
from .writing import Desk, Tally, write_dialogues


@dataclass(frozen=True)
class DataOrder:
    """Which data to write.

    Attributes:
        folder: where to.
        settings: how.
        answer_tokens: how many tokens of answers in all.
        prompts: questions to answer; without, the target asks.
        texts: files to take as they are, instead of dialogues.
        lanes, drafter, budget: see `Author`.
        engine, weights: what runs the target, as for `Speculator`.
    """

    folder: Path
    settings: WritingSettings
    answer_tokens: int
    prompts: tuple[str, ...] = ()
    texts: tuple[Path, ...] = ()
    lanes: int = 96
    drafter: str = "none"
    budget: int = 1
    engine: str = "transformers"
    weights: str | None = None


def write_data(order: DataOrder, model: PreTrainedModel, tokenizer: Any) -> str:
    """Writes the data; returns the line that says what the folder holds."""
    identity = Identity.of(model, tokenizer)
    if order.texts:
        with progress("texts", 1) as shown:
            tally = write_texts(
                order.folder,
                tokenizer,
                identity,
                order.texts,
                longest=order.settings.longest,
                sequences_per_shard=order.settings.dialogues_per_shard,
                progress=shown,
            )
        return _summary(order.folder, tally)
    target = as_target(model, order.engine, order.weights)
    if target.context_limit is not None and order.settings.longest > target.context_limit:
        raise ValueError(
            f"longest {order.settings.longest} exceeds the target's context of {target.context_limit} tokens: lower it "
            "(--longest, and --answer-tokens with it)"
        )
    frame = ChatFrame.read(tokenizer, stop_tokens(model))
    desk = Desk(target, tokenizer, identity, frame, make_drafter(order.drafter), order.budget, order.lanes)
    settings = replace(order.settings, prompts=_checksum(order.prompts))
    with progress("dialogues", order.answer_tokens) as shown:
        tally = write_dialogues(
            order.folder, desk, settings, answer_tokens=order.answer_tokens, prompts=order.prompts, progress=shown
        )
    return _summary(order.folder, tally)


def stop_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """What ends a text of this model, by its generation config."""
    eos = model.generation_config.eos_token_id
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _checksum(prompts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16] if prompts else ""


def _summary(folder: Path, tally: Tally) -> str:
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(tally.kinds.items(), key=lambda item: -item[1]))
    return (
        f"{folder.name}: {tally.dialogues:,} sequences, {tally.answer_tokens:,} answer tokens ({kinds}); "
        f"{tally.dropped} dropped in this run as empty, repeated or too long"
    )


def train_head(order: TrainingOrder, model: PreTrainedModel, tokenizer: Any) -> str:
    """Trains a head; returns the line that says what came out."""
    with progress("training", 1.0) as shown:
        return train(order, model, tokenizer, stop_tokens(model), shown).describe()


@dataclass(frozen=True)
class EvaluationOrder:
    """Which head to evaluate.

    Attributes:
        head: its folder; the result is written there.
        prompts: questions, or
        data: folders whose held-out dialogues give them.
        limit: prompts to run at most, where the data give them.
        max_new_tokens: per prompt.
        budgets: of the trees, root included.
        levels: of an EAGLE head's trees, or ``"auto"``.
        engine, weights: what runs the target, as for `Speculator`.
        target_name: as the user calls the target, and where it was found; for the record.
    """

    head: Path
    prompts: tuple[Prompt, ...] = ()
    data: tuple[Path, ...] = ()
    limit: int | None = 24
    max_new_tokens: int = 128
    budgets: tuple[int, ...] = BUDGETS
    levels: int | str = "auto"
    engine: str = "transformers"
    weights: str | None = None
    target_name: tuple[str, str] = ("", "")


def evaluate_head(order: EvaluationOrder, model: PreTrainedModel, tokenizer: Any) -> list[str]:
    """Evaluates; returns the lines of the tables."""
    folder = HeadFolder.open(order.head, model, order.levels)
    identity = Identity.of(model, tokenizer)
    if order.prompts:
        questions = encoded(order.prompts, tokenizer)
    else:
        questions = held_out_questions(read_corpus(order.data, identity).held_out, order.limit)
    with progress("evaluation", 1.0) as shown:
        found = evaluate(
            folder,
            as_target(model, order.engine, order.weights),
            model,
            questions,
            max_new_tokens=order.max_new_tokens,
            budgets=order.budgets,
            progress=shown,
        )
    record = {
        "head": folder.kind,
        "settings": found.settings,
        "coverage": found.coverage,
        "max_new_tokens": order.max_new_tokens,
        "levels": order.levels,
        "engine": order.engine,
        "weights": order.weights,
        "questions": "given" if order.prompts else "held out",
        "target": identity.as_dict(),
        "provenance": provenance(model=model_facts(*order.target_name, model)),
    }
    written = write_report(order.head, record)
    return [*table(found), "", f"written: {', '.join(path.name for path in written)}"]


def ship_head(order: ShippingOrder, data: tuple[Path, ...], model: PreTrainedModel, tokenizer: Any) -> list[str]:
    """Makes the compact head; returns the lines that say what it is and how it compares."""
    identity = Identity.of(model, tokenizer)
    return ship(order, model, identity, read_corpus(data, identity).held_out).lines()
