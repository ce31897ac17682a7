"""The rows of one wave, answered: what is asked of the engine, and the lines that come of it.

A line of the output is OpenAI's:

    {"id": ..., "custom_id": ..., "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}

and says nothing that differs between two runs: no time, no chance, no trace of who else was served.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..decode.engine import Engine
from ..decode.handle import Handle
from ..serve.errors import ApiError, failure
from ..serve.responses import CHAT, COMPLETION, ResponseWriter, usage_of
from ..serve.schema import ChatRequest
from ..serve.settings import ServerSettings
from ..serve.translate import Job, Translator
from ..target.ranks import RanksLost
from .row import Row


@dataclass(frozen=True)
class Answer:
    """One row of the output.

    Attributes:
        line: with the newline.
        tokens: generated ones.
        failed: whether the row has an error.
    """

    line: bytes
    tokens: int = 0
    failed: bool = False


def answer_wave(rows: Sequence[Row], engine: Engine, settings: ServerSettings, salt: str) -> Iterator[Answer]:
    """The answers of a wave, in order. Steps the engine in this thread until all are there.

    Args:
        rows: of the wave.
        engine: nobody else's.
        settings: the model's name and limits, as a server's.
        salt: tells the ids of this file from those of others.

    Raises:
        RanksLost: the processes of a sharded model are out of step.
    """
    translator = Translator(engine, settings)
    asked = [_Asked.of(row, engine, translator, settings) for row in rows]
    for one in asked:
        while not one.is_done:
            engine.step()
        one.check_alive()
        yield one.answer(engine.tokenizer, settings.model_name, salt)


@dataclass(eq=False)
class _Asked:
    """A row on its way."""

    row: Row
    jobs: Sequence[Job] = ()
    handles: Sequence[Handle] = ()
    refused: ApiError | None = None

    @classmethod
    def of(cls, row: Row, engine: Engine, translator: Translator, settings: ServerSettings) -> _Asked:
        body = row.body
        if body is None:
            return cls(row, refused=row.refused)
        handles: list[Handle] = []
        try:
            if body.model is not None and body.model != settings.model_name:
                message = f"there is no model {body.model!r} here; there is {settings.model_name!r} (see --served-name)"
                raise ApiError(404, message, "model", "model_not_found")
            jobs = translator.chat(body) if isinstance(body, ChatRequest) else translator.complete(body)
            for job in jobs:
                handles.append(engine.submit(job.request))
        except ApiError as error:
            refused = error
        except ValueError as error:
            refused = ApiError(400, str(error))
        else:
            return cls(row, jobs, handles)
        for handle in handles:
            handle.cancel()
        return cls(row, refused=refused)

    @property
    def is_done(self) -> bool:
        return all(handle.is_done for handle in self.handles)

    def check_alive(self) -> None:
        """Raises RanksLost where no later row could be answered either: that is no error of this row."""
        for handle in self.handles:
            if isinstance(handle.error, RanksLost):
                raise handle.error

    def answer(self, tokenizer: Any, model_name: str, salt: str) -> Answer:
        name = hashlib.sha256(f"{salt} {self.row.number}".encode()).hexdigest()[:24]
        error = self.refused or next((failure(h.error) for h in self.handles if h.error is not None), None)
        if error is not None:
            return Answer(_line(self.row, name, error.status, error.body), failed=True)
        body = self.row.body
        assert body is not None
        dialect = CHAT if isinstance(body, ChatRequest) else COMPLETION
        writer = ResponseWriter(dialect, model_name, tokenizer, name=name, created=0)
        choices = []
        for index, (job, handle) in enumerate(zip(self.jobs, self.handles, strict=True)):
            generation = handle.result(timeout=0)
            text = job.prompt_text + (generation.text or "")
            choices.append(writer.choice(index, text, generation.finish_reason, handle))
        usage = usage_of(self.handles, len(self.jobs) // (body.n or 1))
        del usage["prompt_tokens_details"]  # what was reused depends on who came before
        line = _line(self.row, name, 200, writer.whole(choices, usage))
        return Answer(line, tokens=usage["completion_tokens"])


def _line(row: Row, name: str, status: int, body: dict[str, Any]) -> bytes:
    request = f"batch_req_{name}"
    record = {
        "id": request,
        "custom_id": row.custom_id,
        "response": {"status_code": status, "request_id": request, "body": body},
        "error": None,
    }
    # an id may hold half a character, which has no bytes: it becomes the escape that JSON reads back
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"
