"""The routes: what is asked, and which part answers it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.requests import Request as HttpRequest

from .. import __version__
from ..decode.admission import QueueFull, RequestTooLarge
from ..decode.engine import Engine
from ..decode.handle import Handle
from ..show.token_text import TokenLabels
from . import errors, page_files
from .errors import ApiError
from .metrics import CONTENT_TYPE, EngineCollector, render
from .middleware import Gate, log
from .responses import CHAT, COMPLETION, Dialect, ResponseWriter, usage_of
from .schema import ChatRequest, CompletionRequest, DetokenizeRequest, Sampling, TokenizeRequest
from .settings import ServerSettings
from .streaming import CompletionStream, EventStream, cancel_all, results
from .translate import Job, Translator

Body = TypeVar("Body", bound=Sampling)


class Service:
    """What the routes share.

    Args:
        engine: runs the requests; it must have a tokenizer, and somebody must step it.
        settings: limits and names.

    Raises:
        ValueError: the engine has no tokenizer.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        if engine.tokenizer is None:
            raise ValueError("a server speaks text: give the engine a tokenizer")
        self.engine = engine
        self.settings = settings
        self.translator = Translator(engine, settings)
        self.responses: Counter[tuple[str, int]] = Counter()
        self.is_draining = False
        self._open = 0
        self._labels = TokenLabels(engine.tokenizer)

    def check_model(self, name: str | None) -> None:
        """Raises 404 for another model's name."""
        if name is not None and name != self.settings.model_name:
            message = f"there is no model {name!r} here; there is {self.settings.model_name!r}"
            raise ApiError(404, message, "model", "model_not_found")

    async def respond(
        self, http: HttpRequest, body: Body, translate: Callable[[Body], list[Job]], dialect: Dialect
    ) -> Response | dict[str, Any]:
        """One completion, whole or streamed."""
        self.check_model(body.model)
        self._enter()
        ended = False
        try:
            jobs = await run_in_threadpool(translate, body)
            handles = self._submit(jobs)
            writer = ResponseWriter(dialect, self.settings.model_name, self.engine.tokenizer)
            prompts = len(jobs) // (body.n or 1)
            if body.stream:
                labels = self._labels if body.branchwise is not None and body.branchwise.steps else None
                stream = CompletionStream(
                    writer, jobs, handles, prompts, self.engine.tokenizer, body.stream_options, dialect.is_chat, labels
                )
                ended = True  # the stream says itself when it is over
                return EventStream(stream, self.settings.send_seconds, lambda: self._leave(writer.id, handles))
            generations = await results(handles, http)
            if generations is None:
                return Response(status_code=499)  # nobody reads it
            choices = [
                writer.choice(index, job.prompt_text + (generation.text or ""), generation.finish_reason, handle)
                for index, (job, generation, handle) in enumerate(zip(jobs, generations, handles, strict=True))
            ]
            self._log_completion(writer.id, handles)
            return writer.whole(choices, usage_of(handles, prompts))
        finally:
            if not ended:
                self._open -= 1

    def _enter(self) -> None:
        if self.is_draining or not self.engine.is_healthy:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if self._open >= self.settings.open_requests:
            raise ApiError(429, f"{self.settings.open_requests} requests are in progress; try again later")
        self._open += 1

    def _leave(self, response: str, handles: Sequence[Handle]) -> None:
        self._open -= 1
        self._log_completion(response, handles)

    def _submit(self, jobs: Sequence[Job]) -> list[Handle]:
        """All of them, or none."""
        handles: list[Handle] = []
        try:
            for job in jobs:
                handles.append(self.engine.submit(job.request))
        except QueueFull as error:
            raise ApiError(429, str(error), code="queue_full") from None
        except RequestTooLarge as error:
            raise ApiError(400, str(error), code="context_length_exceeded") from None
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        finally:
            if len(handles) < len(jobs):
                cancel_all(handles)
        return handles

    def _log_completion(self, response: str, handles: Sequence[Handle]) -> None:
        for index, handle in enumerate(handles):
            fields: dict[str, Any] = {
                "id": response,
                "index": index,
                "prompt_tokens": len(handle.request.prompt),
                "reused_tokens": handle.reused_tokens,
                "completion_tokens": len(handle.tokens),
                "preemptions": handle.preemptions,
            }
            if handle.first_token_at is not None:
                fields["first_token_seconds"] = round(handle.first_token_at - handle.submitted_at, 4)
            if handle.error is not None:
                fields["error"] = f"{type(handle.error).__name__}: {handle.error}"
            if handle.draft_error is not None:
                fields["draft_error"] = f"{type(handle.draft_error).__name__}: {handle.draft_error}"
            if self.settings.log_prompts:
                fields["prompt"] = self.translator.decode(handle.request.prompt)
                fields["output"] = self.translator.decode(handle.tokens)
            log("completion", **fields)


def create_app(engine: Engine, settings: ServerSettings) -> FastAPI:
    """The server's application; `Service` is its ``state.service``.

    Raises:
        ValueError: the engine has no tokenizer.
    """
    service = Service(engine, settings)
    app = FastAPI(title="branchwise", version=__version__, description=__doc__)
    app.state.service = service
    app.add_middleware(Gate, settings=settings, responses=service.responses)
    errors.install(app)
    page_files.install(app)
    collector = EngineCollector(engine, settings.model_name, service.responses)
    created = int(time.time())
    turned_away: dict[int | str, dict[str, Any]] = {
        status: {"description": text}
        for status, text in (
            (400, "a field is wrong or not supported; names it"),
            (401, "no key or a wrong one"),
            (404, "another model"),
            (413, "the body is too large"),
            (429, "too many requests"),
            (500, "generation failed"),
            (503, "shutting down"),
        )
    }

    @app.post("/v1/chat/completions", responses=turned_away, response_model=None)
    async def chat_completions(body: ChatRequest, http: HttpRequest) -> Response | dict[str, Any]:
        """A chat completion, streamed or whole."""
        return await service.respond(http, body, service.translator.chat, CHAT)

    @app.post("/v1/completions", responses=turned_away, response_model=None)
    async def completions(body: CompletionRequest, http: HttpRequest) -> Response | dict[str, Any]:
        """Completions of one or several prompts, streamed or whole."""
        return await service.respond(http, body, service.translator.complete, COMPLETION)

    @app.get("/v1/models", responses=turned_away)
    async def models() -> dict[str, Any]:
        """The one model there is."""
        limit = service.engine.most_new_tokens(0)
        model = {
            "id": settings.model_name,
            "object": "model",
            "created": created,
            "owned_by": "branchwise",
            "max_model_len": limit,
        }
        return {"object": "list", "data": [model]}

    @app.post("/tokenize", responses=turned_away)
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """Token ids of a text or a chat."""
        service.check_model(body.model)
        tokens = await run_in_threadpool(service.translator.tokenize, body)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": service.engine.most_new_tokens(0)}

    @app.post("/detokenize", responses=turned_away)
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """Text of token ids."""
        service.check_model(body.model)
        return {"prompt": await run_in_threadpool(service.translator.decode, body.tokens)}

    @app.get("/health", responses={503: {"description": "shutting down, or the engine has stopped"}})
    async def health() -> dict[str, str]:
        """Whether requests are served."""
        if service.is_draining or not engine.is_healthy:
            raise ApiError(503, "not serving")
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Numbers for Prometheus."""
        return Response(render(collector), media_type=CONTENT_TYPE)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The library's version."""
        return {"version": __version__}

    return app
