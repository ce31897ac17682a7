"""What a generation cost and gave, per step and in all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..draft.protocol import StepRecord
from .logprobs import TokenLogprobs


@dataclass(frozen=True)
class StepSeconds:
    """Where the time of one step went. In a batch, lanes share the step and its seconds.

    Attributes:
        draft: proposing trees and learning from the verdicts.
        forward: the target's forward.
        verify: laws and the rule.
        commit: moving rows in the cache.
        other: everything else in the loop (stopping, text, bookkeeping).
    """

    draft: float
    forward: float
    verify: float
    commit: float
    other: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.draft + self.forward + self.verify + self.commit + self.other


class StepClock:
    """Adds up the parts of one step: `lap` books the time since the last lap under a name."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = dict.fromkeys(("draft", "forward", "verify", "commit", "other"), 0.0)
        self._now = now
        self._last = now()

    def lap(self, part: str) -> None:
        """Books the time since the last lap (or the start) under ``part``."""
        now = self._now()
        self._seconds[part] += now - self._last
        self._last = now

    def read(self) -> StepSeconds:
        """The seconds so far."""
        return StepSeconds(**self._seconds)


@dataclass(frozen=True, eq=False)
class Generation:
    """One lane's output and how it came about.

    Attributes:
        tokens: generated ids, the stopping token included, without prompt and padding.
        prompt_tokens: length of the prompt without padding.
        finish_reason: ``"stop"`` or ``"length"``.
        stop_cause: the same in detail, see `decode.stopping.Stop`.
        text: the decoded output where a tokenizer was given, a completed stop string and what follows it cut off.
        records: one per step, without the target's tensors.
        seconds: one per step, the loop's parts.
        prefill_seconds: from the request to the first step.
        logprobs: one per generated token, where they were asked for.
        prompt: its token ids, without padding.
        tokenizer: what made the text, or None.
        drafter_parts: what drafted, see `draft.parts`.
    """

    tokens: tuple[int, ...]
    prompt_tokens: int
    finish_reason: str
    stop_cause: str
    text: str | None
    records: tuple[StepRecord, ...] = field(repr=False)
    seconds: tuple[StepSeconds, ...] = field(repr=False)
    prefill_seconds: float
    logprobs: tuple[TokenLogprobs, ...] | None = field(default=None, repr=False)
    prompt: tuple[int, ...] = field(default=(), repr=False)
    tokenizer: Any = field(default=None, repr=False)
    drafter_parts: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Forwards of the target after prefill."""
        return len(self.records)

    @property
    def accepted_drafts(self) -> int:
        """Drafted nodes that were kept, in all."""
        return sum(len(record.verdict.path) - 1 for record in self.records)

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens divided by steps (accepted drafts plus one bonus token per step)."""
        return len(self.tokens) / self.steps if self.steps else 0.0

    @property
    def decode_seconds(self) -> float:
        """Seconds of all steps, prefill not included."""
        return sum(step.total for step in self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second of decoding, prefill not included."""
        return len(self.tokens) / self.decode_seconds if self.seconds else 0.0

    @property
    def overhead_share(self) -> float:
        """Share of the decoding time spent outside the target's forward."""
        forward = sum(step.forward for step in self.seconds)
        return 1 - forward / self.decode_seconds if self.seconds else 0.0

    def show(self, path: str | Path | None = None) -> Path | None:
        """Shows the generation step by step: trees, masks and the text as an interactive page.

        In a notebook the page is displayed below the cell. Elsewhere it is written to a file, which a desktop's browser
        is asked to open. Target probabilities are on it if the generation was run with ``target_probabilities=True``.

        Args:
            path: where to write the page (then it is neither displayed nor opened), by default a temporary file.

        Returns:
            The file, or None where the page was displayed in a notebook.
        """
        # drawing is a floor above: imported when it is asked for
        from ..show.display import show

        return show(self, path)

    def _repr_html_(self) -> str:
        from ..show.display import generation_html

        return generation_html(self)
