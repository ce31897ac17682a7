"""What clients get: bodies of finished completions and chunks of streams, in OpenAI's form.

Two dialects, chat and plain completions, differ in names only. Knows handles' tokens and texts; knows no HTTP.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..decode.handle import Handle
from ..decode.logprobs import TokenLogprobs


@dataclass(frozen=True)
class Dialect:
    """Names of one kind of completion.

    Attributes:
        prefix: of ids.
        whole, chunk: the ``object`` of a finished body and of a stream's chunk.
        is_chat: whether text goes in messages.
    """

    prefix: str
    whole: str
    chunk: str
    is_chat: bool


CHAT = Dialect("chatcmpl", "chat.completion", "chat.completion.chunk", True)
COMPLETION = Dialect("cmpl", "text_completion", "text_completion", False)


def usage_of(handles: Sequence[Handle], prompts: int) -> dict[str, Any]:
    """Tokens so far. ``prompts`` of the handles, evenly spread, have a prompt of their own; the others repeat it."""
    first = handles[:: len(handles) // prompts]
    prompt = sum(len(handle.request.prompt) for handle in first)
    completion = sum(len(handle.tokens) for handle in handles)
    cached = sum(handle.reused_tokens for handle in first)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class ResponseWriter:
    """Bodies and chunks of one response.

    Args:
        dialect: chat or plain.
        model: the model's name.
        tokenizer: for the text of single tokens.
        name: of the response, for its id; something that never was by default.
        created: its time in seconds since 1970; now by default.
    """

    def __init__(
        self, dialect: Dialect, model: str, tokenizer: Any, *, name: str | None = None, created: int | None = None
    ) -> None:
        self.id = f"{dialect.prefix}-{name or uuid.uuid4().hex}"
        self._dialect = dialect
        self._model = model
        self._tokenizer = tokenizer
        self._created = int(time.time()) if created is None else created

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """The body of a finished response."""
        return {**self._head(self._dialect.whole), "choices": list(choices), "usage": usage}

    def choice(self, index: int, text: str, finish_reason: str, handle: Handle) -> dict[str, Any]:
        """One finished choice."""
        told = self._logprobs(handle.logprobs) if handle.request.logprobs is not None else None
        if self._dialect.is_chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": index, "message": message, "logprobs": told, "finish_reason": finish_reason}
        return {"index": index, "text": text, "logprobs": told, "finish_reason": finish_reason}

    def first(self, index: int) -> dict[str, Any]:
        """The chunk that opens a chat's choice."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._head(self._dialect.chunk), "choices": [choice]}

    def piece(
        self, index: int, text: str, logprobs: Sequence[TokenLogprobs], finish_reason: str | None = None
    ) -> dict[str, Any]:
        """A chunk of text; the last one says why it is."""
        choice: dict[str, Any] = {"index": index}
        if not self._dialect.is_chat:
            choice["text"] = text
        else:
            choice["delta"] = {"content": text} if text or finish_reason is None else {}
        choice["logprobs"] = self._logprobs(logprobs) if logprobs else None
        choice["finish_reason"] = finish_reason
        return {**self._head(self._dialect.chunk), "choices": [choice]}

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The chunk that closes a stream with numbers."""
        return {**self._head(self._dialect.chunk), "choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    # log-probabilities

    def _logprobs(self, told: Sequence[TokenLogprobs]) -> dict[str, Any]:
        if self._dialect.is_chat:
            return {"content": [self._chat_logprobs(one) for one in told], "refusal": None}
        return {
            "tokens": [self._piece_of(one.token) for one in told],
            "token_logprobs": [_finite(one.logprob) for one in told],
            "top_logprobs": [{self._piece_of(token): _finite(value) for token, value in one.top} for one in told],
        }

    def _chat_logprobs(self, one: TokenLogprobs) -> dict[str, Any]:
        top = [self._entry(token, value) for token, value in one.top]
        return {**self._entry(one.token, one.logprob), "top_logprobs": top}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._piece_of(token)
        # a token may be a part of a character: then its text does not tell its bytes
        octets = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": _finite(logprob), "bytes": octets}

    def _piece_of(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _finite(logprob: float) -> float:
    """JSON has no infinity; this is what OpenAI sends for the impossible."""
    return max(logprob, -9999.0)


def event(body: dict[str, Any] | str) -> bytes:
    """One server-sent event."""
    data = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n".encode()
