"""One submitted request as its owner sees it, from any thread: tokens as they come, the result, a way to give up.

Knows no engine: it is told what happens, and tells whoever waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from ..draft.protocol import StepRecord
from .logprobs import TokenLogprobs
from .request import Request
from .statistics import Generation, StepSeconds
from .text import ShownText


class RequestCancelled(RuntimeError):
    """The request was cancelled, by its owner or because the engine shut down."""


class Handle:
    """A request on its way through an engine.

    Iterating, also with ``async for``, gives runs of tokens as soon as they are final; `text` gives pieces of text.
    Several readers may do so at once, each from the beginning. When the request fails, readers get what was generated
    and then its error.

    Attributes:
        request: what was asked.
        reused_tokens: tokens of the prompt that were not read but copied from an earlier one.
        preemptions: times it had to make room and was read anew; never changes its output.
        submitted_at, first_token_at, finished_at: times of the engine's clock in seconds, None before.
        draft_error: why the drafter was given up for this request, or None; never changes its output.
    """

    def __init__(self, request: Request, number: int, tokenizer: Any, now: float, wake: Callable[[], None]) -> None:
        self.request = request
        self.number = number
        self.reused_tokens = 0
        self.preemptions = 0
        self.submitted_at = now
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.draft_error: Exception | None = None
        self.is_cancelled = False
        self._tokenizer = tokenizer
        self._wake_engine = wake
        self._runs: list[tuple[int, ...]] = []
        self._logprobs: list[TokenLogprobs] = []
        self._records: list[StepRecord] = []
        self._seconds: list[StepSeconds] = []
        self._generation: Generation | None = None
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._listeners: set[Callable[[], None]] = set()

    # for the owner

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._generation is not None or self._error is not None

    @property
    def error(self) -> BaseException | None:
        """What ended it early, or None."""
        return self._error

    @property
    def tokens(self) -> tuple[int, ...]:
        """Everything generated so far."""
        return tuple(token for run in list(self._runs) for token in run)

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """One for each of `tokens`, where the request asked for them; a list that grows."""
        return self._logprobs

    @property
    def records(self) -> list[StepRecord]:
        """The step behind each run of tokens; a list that grows."""
        return self._records

    @property
    def seconds(self) -> list[StepSeconds]:
        """What each of `records` cost; a list that grows."""
        return self._seconds

    def cancel(self) -> None:
        """Gives up: what the request holds is freed before the next step. No-op when it is done."""
        self.is_cancelled = True
        self._wake_engine()

    def result(self, timeout: float | None = None) -> Generation:
        """Waits for the end.

        Args:
            timeout: seconds to wait at most.

        Raises:
            TimeoutError: it is still running.
            RequestCancelled: it was cancelled.
            Exception: whatever ended the request.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_done, timeout):
                raise TimeoutError(f"request {self.number} is still running after {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._generation is not None
        return self._generation

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        seen = 0
        while True:
            with self._changed:
                while not self.is_done and len(self._runs) == seen:
                    self._changed.wait()
                fresh, done = self._runs[seen:], self.is_done
            seen += len(fresh)
            yield from fresh
            if done and not self._runs[seen:]:
                break
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[tuple[int, ...]]:
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            # the loop may be gone when the last tokens come: then nobody listens
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        seen = 0
        with self._changed:
            self._listeners.add(listener)
        try:
            while True:
                event.clear()
                with self._changed:
                    fresh, done = self._runs[seen:], self.is_done
                seen += len(fresh)
                for run in fresh:
                    yield run
                if done and not self._runs[seen:]:
                    break
                if not fresh:
                    await event.wait()
        finally:
            with self._changed:
                self._listeners.discard(listener)
        if self._error is not None:
            raise self._error

    def text(self) -> Iterator[str]:
        """Pieces of text that add up to the result's text; stop strings never show.

        Raises:
            ValueError: the engine has no tokenizer.
        """
        if self._tokenizer is None:
            raise ValueError("text needs a tokenizer: give the engine one, or iterate over the handle for tokens")
        visible = ShownText(self._tokenizer, self.request.stop.stop_strings)
        for run in self:
            piece = visible.push(run)
            if piece:
                yield piece
        rest = visible.flush()
        if rest:
            yield rest

    # for the engine

    def add_run(
        self, run: tuple[int, ...], logprobs: Sequence[TokenLogprobs], record: StepRecord, seconds: StepSeconds
    ) -> None:
        """One step has made more tokens final."""

        def change() -> None:
            self._records.append(record)
            self._seconds.append(seconds)
            self._logprobs.extend(logprobs)
            self._runs.append(run)

        self._tell(change)

    def finish(self, generation: Generation, now: float) -> None:
        """The request has ended as it should."""
        self.finished_at = now
        self._tell(lambda: setattr(self, "_generation", generation))

    def fail(self, error: BaseException, now: float) -> None:
        """The request has ended with an error."""
        self.finished_at = now
        self._tell(lambda: setattr(self, "_error", error))

    def _tell(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
