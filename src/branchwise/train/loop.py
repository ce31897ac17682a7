"""The training loop: batches, steps, checkpoints, measuring, from wherever it was left.

Knows a `Method` and files; knows no kind of head. On a CPU, a training by steps that was killed and resumed is the
uninterrupted one bit for bit: order, anchors and learning rate are functions of the step, everything else is in the
checkpoint.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .batches import BatchOrder, make_batch
from .corpus import Corpus, Piece
from .features import FeatureSource
from .method import Method, acceptance
from .progress import Progress
from .settings import TrainingSettings
from .training_state import History, TrainingState

#: seconds between checkpoints, and between measurements on held-out text
CHECKPOINT_SECONDS = 180.0
MEASURE_SECONDS = 600.0
#: a note in the history every so many steps
NOTE_STEPS = 20


class Trainer:
    """One training.

    Args:
        method: the head and its losses.
        corpus: what it sees.
        source: of features.
        settings: see there.
        folder: for checkpoint and history.
        about: what a checkpoint must agree with, see `TrainingState`.
        autocast: compute products in bfloat16.
        clock: of the training's seconds.
    """

    def __init__(
        self,
        method: Method,
        corpus: Corpus,
        source: FeatureSource,
        settings: TrainingSettings,
        folder: Path,
        about: dict[str, Any],
        *,
        autocast: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.method = method
        self.settings = settings
        self._corpus = corpus
        self._source = source
        self._folder = folder
        self._autocast = autocast
        self._clock = clock
        self._order = BatchOrder(corpus.training, settings.batch_tokens, settings.longest, settings.seed)
        self._device = next(method.module.parameters()).device
        self._dtype = next(method.module.parameters()).dtype
        groups = method.groups()
        self._scales = [group.scale for group in groups]
        self._optimizer = torch.optim.AdamW(
            [{"params": group.parameters, "weight_decay": group.decay} for group in groups],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.state = TrainingState(about)
        self._average: dict[str, Tensor] = {}
        if settings.ema:
            self._average = {name: p.detach().clone() for name, p in method.module.named_parameters()}

    def resume(self, state: TrainingState) -> None:
        """Goes on from a checkpoint."""
        self.method.module.load_state_dict(state.weights or {})
        self._optimizer.load_state_dict(state.optimizer or {})
        if state.average is not None:
            self._average = {name: value.to(self._device) for name, value in state.average.items()}
        if state.random is not None:
            torch.set_rng_state(state.random)
        self.state = state

    def run(self, progress: Progress, export: Callable[[], None] = lambda: None) -> list[float]:
        """Trains to the end; writes a checkpoint every few minutes and one at the end.

        Args:
            progress: told after every step.
            export: called with the weights to export in place, after each measurement.

        Returns:
            acceptance per depth on held-out text, at the end.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        history = History(self._folder, self.state.step)
        began, before = self._clock(), self.state.seconds
        tokens_before = self.state.tokens
        saved = measured = began
        shown: list[float] = []
        while self.settings.done(self.state.step, self.state.seconds) < 1.0:
            losses = self._step()
            now = self._clock()
            self.state.seconds = before + now - began
            pace = (self.state.tokens - tokens_before) / max(now - began, 1e-9)
            if self.state.step % NOTE_STEPS == 0:
                history.add(step=self.state.step, tokens=self.state.tokens, seconds=round(self.state.seconds, 1),
                            epoch=self._order.epoch, losses=[round(loss, 5) for loss in losses])  # fmt: skip
            progress.update(
                self.settings.done(self.state.step, self.state.seconds), _note(self.state, losses, pace, shown)
            )
            if now - measured >= MEASURE_SECONDS:
                shown = self._measured(history, export)
                measured = self._clock()
            if now - saved >= CHECKPOINT_SECONDS:
                self.save()
                saved = self._clock()
        self.save()
        return self._measured(history, export)

    def save(self) -> None:
        """Writes the checkpoint."""
        self.state.weights = self.method.module.state_dict()
        self.state.optimizer = self._optimizer.state_dict()
        self.state.average = self._average or None
        self.state.random = torch.get_rng_state()
        self.state.write(self._folder)

    def measure(self, pieces: Sequence[Piece]) -> list[float]:
        """Acceptance per depth of the head's first choices."""
        hits, exists = [], []
        with self._exported_weights():
            for piece in pieces:
                batch = self._batch([piece], 0)
                if batch.tokens.shape[1] > 2 + self.method.depths:
                    with self._precision():
                        found = self.method.hits(batch)
                    hits.append(found[0])
                    exists.append(found[1])
        return acceptance(torch.cat(hits), torch.cat(exists)) if hits else []

    def _measured(self, history: History, export: Callable[[], None]) -> list[float]:
        found = self.measure(self._corpus.held_out)
        history.add(step=self.state.step, tokens=self.state.tokens, acceptance=[round(share, 4) for share in found])
        with self._exported_weights():
            export()
        return found

    def _step(self) -> tuple[float, ...]:
        rate = self.settings.rate(self.state.step, self.state.seconds)
        for group, scale in zip(self._optimizer.param_groups, self._scales, strict=True):
            group["lr"] = rate * scale
        self._optimizer.zero_grad(set_to_none=True)
        sums: tuple[float, ...] = ()
        for _ in range(self.settings.accumulate):
            batch = self._batch(self._order.pieces(self.state.batches), self.state.batches)
            with self._precision():
                losses = self.method.losses(batch)
            (losses.total / self.settings.accumulate).backward()
            parts = tuple(loss / self.settings.accumulate for loss in losses.by_depth)
            sums = tuple(a + b for a, b in zip(sums, parts, strict=True)) if sums else parts
            self.state.batches += 1
            self.state.tokens += batch.real_tokens
        torch.nn.utils.clip_grad_norm_(self.method.module.parameters(), self.settings.clip)
        self._optimizer.step()
        self.state.step += 1
        if self._average:
            with torch.no_grad():
                for name, parameter in self.method.module.named_parameters():
                    self._average[name].lerp_(parameter, 1 - self.settings.ema)
        return sums

    def _batch(self, pieces: Sequence[Piece], number: int):
        return make_batch(
            pieces,
            self._source,
            longest=self.settings.longest,
            question_weight=self.settings.question_weight,
            number=number,
            device=self._device,
            dtype=self._dtype,
        )

    @contextmanager
    def _precision(self) -> Iterator[None]:
        if not self._autocast:
            yield
            return
        with torch.autocast(self._device.type, torch.bfloat16), warnings.catch_warnings():
            # norms keep float32 weights while the products before them are bfloat16: right, if not one kernel
            warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
            yield

    def _exported_weights(self) -> AbstractContextManager[Any]:
        return _Swapped(self.method.module, self._average) if self._average else nullcontext()


class _Swapped:
    """A module with other weights for a while."""

    def __init__(self, module: torch.nn.Module, weights: dict[str, Tensor]) -> None:
        self._module, self._weights = module, weights

    def __enter__(self) -> None:
        self._own = {name: p.detach().clone() for name, p in self._module.named_parameters()}
        self._put(self._weights)

    def __exit__(self, *_: object) -> None:
        self._put(self._own)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._module.named_parameters():
            parameter.copy_(weights[name])


def _note(state: TrainingState, losses: Sequence[float], pace: float, accepted: Sequence[float]) -> str:
    note = f"step {state.step:,}, {state.tokens:,} tokens, {pace:.0f} tokens/s, loss {_row(losses)}"
    return f"{note}, accepted {_row(accepted)}" if accepted else note


def _row(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)
