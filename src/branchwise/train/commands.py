"""What the commands of ``branchwise train`` do once a model is loaded. Puts the parts of this room together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..draft.registry import make_drafter
from ..target.huggingface import HuggingFaceTarget
from .chat_frame import ChatFrame
from .identity import Identity
from .plans import WritingSettings
from .progress import progress
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
    """

    folder: Path
    settings: WritingSettings
    answer_tokens: int
    prompts: tuple[str, ...] = ()
    texts: tuple[Path, ...] = ()
    lanes: int = 96
    drafter: str = "none"
    budget: int = 1


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
    target = HuggingFaceTarget(model)
    if target.context_limit is not None and order.settings.longest > target.context_limit:
        raise ValueError(
            f"longest {order.settings.longest} exceeds the target's context, {target.context_limit} tokens"
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
