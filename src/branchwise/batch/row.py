"""One line of the input: a request as the server takes it, or what is wrong with it.

Two forms are read, and may be mixed in one file:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], ...}}
    {"prompt": "...", "max_tokens": 20}        or {"messages": [...]}, with any field of the server's API

Knows fields; knows no model and no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..serve.errors import ApiError, bad_field, validation_body
from ..serve.schema import ChatRequest, CompletionRequest

CHAT_URL = "/v1/chat/completions"
COMPLETION_URL = "/v1/completions"

#: fields beside ``body`` in the long form
_ENVELOPE = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True)
class RowDefaults:
    """What rows get that they do not say.

    Attributes:
        seed: of the whole file; every row without a seed has one that follows from this and its place.
        max_tokens: most new tokens, or None for the API's own default.
        temperature: 0 is greedy; None for the API's own default, 1.

    Raises:
        ValueError: a number is out of range.
    """

    seed: int = 0
    max_tokens: int | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"a seed must be in [0, 2**64), got {self.seed}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max-tokens must be >= 1, got {self.max_tokens}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be from 0 (greedy) to 2, got {self.temperature}")

    def complete(self, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        """A body with everything it leaves out."""
        filled = dict(body)
        if self.max_tokens is not None and body.get("max_completion_tokens") is None:
            _fill(filled, "max_tokens", self.max_tokens)
        if self.temperature is not None:
            _fill(filled, "temperature", self.temperature)
        _fill(filled, "seed", row_seed(self.seed, number))
        return filled


@dataclass(frozen=True, eq=False)
class Row:
    """One request of the file.

    Attributes:
        number: its place among the file's rows, 0 first.
        custom_id: the user's name for it, or ``row-NUMBER``.
        body: what is asked, or None where something is wrong.
        refused: what is wrong, or None.
    """

    number: int
    custom_id: str
    body: ChatRequest | CompletionRequest | None
    refused: ApiError | None = None


def parse_row(line: bytes | None, number: int, defaults: RowDefaults) -> Row:
    """The row of a line; None stands for a line longer than allowed."""
    custom_id = own_id(line, number)
    try:
        return Row(number, custom_id, _body(_object(line), number, defaults))
    except ApiError as error:
        return Row(number, custom_id, None, error)
    except ValidationError as error:
        return Row(number, custom_id, None, _from_validation(error))


def own_id(line: bytes | None, number: int) -> str:
    """The row's ``custom_id``, or the name it gets."""
    try:
        given = _object(line).get("custom_id")
    except ApiError:
        given = None
    return given if isinstance(given, str) else f"row-{number}"


def row_seed(seed: int, number: int) -> int:
    """The seed of a row that has none: 64 bits that depend on the file's seed and the row's place alone."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "big")


def _object(line: bytes | None) -> dict[str, Any]:
    if line is None:
        raise ApiError(413, "the line is longer than allowed; see --max-row-bytes", code="row_too_large")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the line is no valid JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"a row is a JSON object, not a {type(found).__name__}", code="invalid_json")
    return found


def _body(row: dict[str, Any], number: int, defaults: RowDefaults) -> ChatRequest | CompletionRequest:
    if not isinstance(row.get("custom_id", ""), str):
        raise bad_field("custom_id", f"custom_id must be a string, got {row['custom_id']!r}")
    if "body" not in row:
        body = {name: value for name, value in row.items() if name != "custom_id"}
        is_chat = "messages" in body
    else:
        body, is_chat = _from_envelope(row)
    if body.get("stream"):
        raise bad_field("stream", "a batch has no streams; leave stream out")
    kind = ChatRequest if is_chat else CompletionRequest
    return kind.model_validate(defaults.complete(body, number))


def _from_envelope(row: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    unknown = sorted(row.keys() - _ENVELOPE)
    if unknown:
        raise ApiError(400, f"the field {unknown[0]!r} is not supported here", unknown[0], "unknown_field")
    if row.get("method", "POST") != "POST":
        raise bad_field("method", f"method must be POST, got {row['method']!r}")
    body = row["body"]
    if not isinstance(body, dict):
        raise bad_field("body", "body must be an object")
    url = row.get("url", CHAT_URL if "messages" in body else COMPLETION_URL)
    if url not in (CHAT_URL, COMPLETION_URL):
        raise bad_field("url", f"url must be {CHAT_URL} or {COMPLETION_URL}, got {url!r}")
    return body, url == CHAT_URL


def _from_validation(error: ValidationError) -> ApiError:
    told = validation_body(error.errors())["error"]
    return ApiError(400, told["message"], told["param"], told["code"])


def _fill(body: dict[str, Any], name: str, value: Any) -> None:
    if body.get(name) is None:
        body[name] = value
