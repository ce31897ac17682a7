"""A head is trained: the parts of this room put together for one kind of head, begun or continued.

OUT/config.json, the weights     the head, in its published layout, renewed after every measurement
OUT/training.json                where it came from: target, data, settings, machine
OUT/training/                    checkpoint and history, no longer needed once the training is done
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..bench.provenance import model_facts, provenance
from ..decode.attach import as_target
from ..draft.eagle_load import drafted_tokens
from .block import BlockMethod, BlockOptions
from .corpus import Corpus, read_corpus
from .disk import write_json
from .draft_vocabulary import DraftVocabulary, choose_vocabulary
from .eagle3 import Eagle3Method, Eagle3Options
from .features import Computed, FeatureSource, Fed, Kept
from .identity import Identity
from .loop import Trainer
from .medusa import MedusaMethod, MedusaOptions
from .method import Method
from .precision import bfloat16_is_faster
from .progress import Progress
from .settings import TrainingSettings
from .training_state import TrainingState
from .writing import only_writer

Options = Eagle3Options | BlockOptions | MedusaOptions


@dataclass(frozen=True)
class TrainingOrder:
    """What to train.

    Attributes:
        out: folder of the head.
        data: folders of `train data`.
        options: of the kind of head; their type says which kind.
        settings: of the training.
        draft_vocabulary: ``"auto"``, ``"full"`` or a number of tokens.
        keep_features: on disk beside the data; otherwise the target computes them for every batch.
        engine, weights: what computes them, as for `Speculator`.
        resume: go on from the checkpoint, if there is one.
        target_name: as the user calls the target, and where it was found; for the record.
    """

    out: Path
    data: tuple[Path, ...]
    options: Options
    settings: TrainingSettings
    draft_vocabulary: str | int = "auto"
    keep_features: bool = True
    engine: str = "transformers"
    weights: str | None = None
    resume: bool = False
    target_name: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Trained:
    """What came out.

    Attributes:
        out: the head's folder.
        step, tokens: of the training.
        acceptance: per depth on held-out text, of the head's first choices as a chain.
    """

    out: Path
    step: int
    tokens: int
    acceptance: tuple[float, ...]

    def describe(self) -> str:
        """One line for the user."""
        shares = " ".join(f"{share:.3f}" for share in self.acceptance)
        return (
            f"{self.out.name}: {self.step:,} steps, {self.tokens:,} tokens; accepted by depth on held-out text {shares}"
        )


def train(
    order: TrainingOrder, model: PreTrainedModel, tokenizer: Any, stops: Sequence[int], progress: Progress
) -> Trained:
    """Trains a head to the end.

    Raises:
        ValueError: a training lies there that is not to be continued, or not this one; says what differs. Or there is
            nothing to learn.
        TargetMismatch, DamagedShard, DamagedCheckpoint, DiskFull: see there.
    """
    identity = Identity.of(model, tokenizer)
    folder = order.out / "training"
    with only_writer(folder):
        state = TrainingState.read(folder)
        if state is not None:
            _check_continuation(order, identity, state)
        corpus = read_corpus(order.data, identity, shards=state.about["shards"] if state is not None else None)
        if not corpus.answer_tokens and not order.settings.question_weight:
            raise ValueError(
                "the data hold no answers, and with question-weight 0 nothing else is learned: leave it at 0.5, or let "
                "the target answer (branchwise train data)"
            )
        vocabulary = _vocabulary(order, model, corpus, identity, stops, state)
        progress.say(_describe(corpus))
        progress.say(vocabulary.describe())
        method = make_method(order.options, model, vocabulary, order.settings.seed)
        source = _source(order, model, corpus, identity, method, progress)
        device = model.get_input_embeddings().weight.device
        autocast = bool(state.about["autocast"]) if state is not None else bfloat16_is_faster(device)
        about = _about(order, identity, corpus, vocabulary, autocast)
        trainer = Trainer(method, corpus, source, order.settings, folder, about, autocast=autocast)
        if state is not None:
            trainer.resume(state)
            progress.say(f"going on from step {state.step:,}")
        export = partial(_export, order, model, method, trainer, about)
        accepted = trainer.run(progress, export)
        return Trained(order.out, trainer.state.step, trainer.state.tokens, tuple(accepted))


def make_method(options: Options, model: PreTrainedModel, vocabulary: DraftVocabulary, seed: int) -> Method:
    """The kind of head that the options are of."""
    if isinstance(options, Eagle3Options):
        return Eagle3Method(model, vocabulary, options, seed)
    if isinstance(options, BlockOptions):
        return BlockMethod(model, vocabulary, options, seed)
    return MedusaMethod(model, vocabulary, options, seed)


def _engine_name(order: TrainingOrder) -> str:
    return " ".join(filter(None, (order.engine, order.weights)))


def _kind(options: Options) -> str:
    return type(options).__name__.removesuffix("Options").lower()


def _source(
    order: TrainingOrder,
    model: PreTrainedModel,
    corpus: Corpus,
    identity: Identity,
    method: Method,
    progress: Progress,
) -> FeatureSource:
    computed: FeatureSource = Computed(model, method.feature_layers)
    if order.engine != "transformers":
        target = as_target(model, order.engine, order.weights)
        computed = Fed(target, model, method.feature_layers, _engine_name(order))
    if not order.keep_features:
        return computed
    kept = Kept(computed, corpus, identity)
    kept.announce(progress)
    return kept


def _vocabulary(
    order: TrainingOrder,
    model: PreTrainedModel,
    corpus: Corpus,
    identity: Identity,
    stops: Sequence[int],
    state: TrainingState | None,
) -> DraftVocabulary:
    if state is not None:
        about = state.about
        ids, (trained_on, held_out) = about["vocabulary"].numpy(), about["coverage"]
        return DraftVocabulary(ids, identity.vocab_size, trained_on, held_out, about.get("deep"))
    options = order.options
    start = options.start if isinstance(options, Eagle3Options) else ""
    known, deep = drafted_tokens(start, model) if start else ([], None)
    return choose_vocabulary(corpus, identity.vocab_size, stops, order.draft_vocabulary, known, deep)


def _about(
    order: TrainingOrder, identity: Identity, corpus: Corpus, vocabulary: DraftVocabulary, autocast: bool
) -> dict[str, Any]:
    return {
        "kind": _kind(order.options),
        "target": identity.as_dict(),
        "options": asdict(order.options),
        "settings": order.settings.as_dict(),
        "shards": [list(shards) for shards in corpus.shards],
        "vocabulary": torch.from_numpy(vocabulary.ids),
        "coverage": [vocabulary.training_coverage, vocabulary.held_out_coverage],
        "deep": vocabulary.deep,
        "features": _engine_name(order),
        "autocast": autocast,
    }


def _check_continuation(order: TrainingOrder, identity: Identity, state: TrainingState) -> None:
    if not order.resume:
        raise ValueError(
            f"{order.out} holds a training of {state.step:,} steps: add --resume to go on, or choose another folder"
        )
    about = state.about
    if about["kind"] != _kind(order.options):
        raise ValueError(
            f"{order.out} holds the training of a head of kind {about['kind']}, not {_kind(order.options)}"
        )
    identity.require_same(Identity.from_dict(about["target"]), f"the training in {order.out}")
    now = {**asdict(order.options), **order.settings.as_dict(), "features": _engine_name(order)}
    then = {**about["options"], **about["settings"], "features": about.get("features")}
    for name in sorted({*now, *then}):
        if now.get(name) != then.get(name):
            raise ValueError(
                f"the training in {order.out} was begun with {name.replace('_', '-')} {then.get(name)!r}, now it is "
                f"{now.get(name)!r}: go on with the same"
            )
    if len(about["shards"]) != len(order.data):
        raise ValueError(f"the training in {order.out} was begun with {len(about['shards'])} folders of data")


def _export(
    order: TrainingOrder, model: PreTrainedModel, method: Method, trainer: Trainer, about: dict[str, Any]
) -> None:
    method.export(order.out)
    record = {
        "kind": about["kind"],
        "step": trainer.state.step,
        "tokens": trainer.state.tokens,
        "training_seconds": round(trainer.state.seconds, 1),
        # where a head lay on this machine is nobody else's business
        "options": {name: Path(value).name if name == "start" else value for name, value in about["options"].items()},
        "settings": about["settings"],
        "draft_vocabulary": {
            "size": len(about["vocabulary"]),
            "deep": about["deep"],
            "coverage": about["coverage"],
        },
        "bfloat16": about["autocast"],
        "features": about["features"],
        "data": [folder.name for folder in order.data],
        "target": about["target"],
        "provenance": provenance(model=model_facts(*order.target_name, model)),
    }
    write_json(order.out / "training.json", record, what="the record of the training")


def _describe(corpus: Corpus) -> str:
    return (
        f"{len(corpus.training):,} sequences of {corpus.tokens:,} tokens ({corpus.answer_tokens:,} of answers) to "
        f"train on, {len(corpus.held_out)} held out"
    )
