"""Completions in flight: several handles behind one response, as one body or as one stream of events.

Whatever ends the response early (the client leaves, takes no bytes, or an error) cancels what is still running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..decode.handle import Handle
from ..decode.statistics import Generation
from ..decode.text import ShownText
from ..show.token_text import TokenLabels
from .errors import failure
from .responses import ResponseWriter, event, usage_of
from .schema import StreamOptions
from .steps import StepTeller
from .translate import Job


def cancel_all(handles: Iterable[Handle]) -> None:
    """Cancels those that still run."""
    for handle in handles:
        if not handle.is_done:
            handle.cancel()


async def results(handles: Sequence[Handle], http: HttpRequest) -> list[Generation] | None:
    """Every handle's result, or None when the client has left before; then nothing goes on running.

    Raises:
        ApiError: a request failed; the others are cancelled.
    """
    finished = asyncio.ensure_future(asyncio.gather(*map(_result, handles)))
    left = asyncio.ensure_future(_disconnected(http.receive))
    try:
        await asyncio.wait((finished, left), return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            return None
        return finished.result()
    except Exception as error:
        raise failure(error) from error
    finally:
        cancel_all(handles)
        for task in (finished, left):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _result(handle: Handle) -> Generation:
    async for _ in handle:
        pass
    return handle.result(timeout=0)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class CompletionStream:
    """The events of one streamed response.

    Args:
        writer: makes the chunks.
        jobs: what was asked, one per choice.
        handles: the same in the engine.
        prompts: how many different prompts there are.
        tokenizer: for text.
        options: what the stream carries beside text.
        opens_choices: whether each choice begins with a chunk of its own (chat).
        labels: of tokens, for those who asked for the step behind each chunk.
    """

    def __init__(
        self,
        writer: ResponseWriter,
        jobs: Sequence[Job],
        handles: Sequence[Handle],
        prompts: int,
        tokenizer: Any,
        options: StreamOptions | None,
        opens_choices: bool,
        labels: TokenLabels | None = None,
    ) -> None:
        self._writer = writer
        self._jobs = jobs
        self._handles = handles
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._options = options or StreamOptions()
        self._opens_choices = opens_choices
        self._labels = labels

    def cancel(self) -> None:
        """Nobody reads on: what still runs is cancelled."""
        cancel_all(self._handles)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Everything from the first chunk to ``[DONE]``."""
        chunks: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._follow(index, chunks)) for index in range(len(self._handles))]
        running = len(tasks)
        try:
            while running:
                chunk = await chunks.get()
                if chunk is None:
                    running -= 1
                elif isinstance(chunk, BaseException):
                    yield event(failure(chunk).body)
                    yield event("[DONE]")
                    return
                else:
                    yield event(self._with_usage(chunk))
            if self._options.include_usage:
                yield event(self._writer.usage(usage_of(self._handles, self._prompts)))
            yield event("[DONE]")
        finally:
            self.cancel()
            for task in tasks:
                task.cancel()

    def _with_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        if self._options.continuous_usage_stats:
            return {**chunk, "usage": usage_of(self._handles, self._prompts)}
        return {**chunk, "usage": None} if self._options.include_usage else chunk

    async def _follow(self, index: int, chunks: asyncio.Queue[dict[str, Any] | BaseException | None]) -> None:
        """Puts one choice's chunks in the queue, then None; or the error that ended it."""
        handle, job = self._handles[index], self._jobs[index]
        visible = ShownText(self._tokenizer, job.request.stop.stop_strings)
        teller = None if self._labels is None else StepTeller(handle, self._labels)
        seen = 0
        try:
            if self._opens_choices:
                chunks.put_nowait(self._writer.first(index))
            if job.prompt_text:
                chunks.put_nowait(self._writer.piece(index, job.prompt_text, ()))
            async for run in handle:
                told = handle.logprobs[seen : seen + len(run)]
                seen += len(run)
                # one piece per token only where somebody wants to know which is which: each costs a decoding
                pieces = [visible.push(run)] if teller is None else [visible.push([token]) for token in run]
                piece = "".join(pieces)
                step = {} if teller is None else {"branchwise": {"step": teller.tell(pieces)}}
                if piece or told or step:
                    chunks.put_nowait({**self._writer.piece(index, piece, told), **step})
            reason = handle.result(timeout=0).finish_reason
            chunks.put_nowait(self._writer.piece(index, visible.flush(), (), reason))
            chunks.put_nowait(None)
        except Exception as error:
            chunks.put_nowait(error)


class EventStream(StreamingResponse):
    """Server-sent events to a client that must take them.

    Args:
        stream: what is sent.
        send_seconds: how long a client may take no bytes.
        ended: called once when the response is over, however it ended.
    """

    def __init__(self, stream: CompletionStream, send_seconds: float, ended: Callable[[], None]) -> None:
        self._events = stream.events()
        super().__init__(
            self._events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._stream = stream
        self._send_seconds = send_seconds
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def send_in_time(message: Any) -> None:
            await asyncio.wait_for(send(message), self._send_seconds)

        left = asyncio.ensure_future(_disconnected(receive))
        left.add_done_callback(lambda _: self._stream.cancel())
        try:
            with suppress(TimeoutError, OSError):  # whoever takes nothing is treated like one who has left
                await self.stream_response(send_in_time)
        finally:
            left.cancel()
            self._stream.cancel()
            await self._events.aclose()
            self._ended()
