"""Errors in the form that OpenAI's clients understand: a status and ``{"error": {...}}``."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..decode.handle import RequestCancelled

#: status -> OpenAI's name for errors of that kind
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable"}


class ApiError(Exception):
    """A request that is turned away.

    Args:
        status: of the HTTP response.
        message: what is wrong and what to do.
        param: the field that is wrong.
        code: OpenAI's short name for the error.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The response's JSON."""
        return error_body(self.status, str(self), self.param, self.code)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """``{"error": ...}``."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def bad_field(param: str, message: str) -> ApiError:
    """400 for one field."""
    return ApiError(400, message, param, "invalid_value")


def failure(error: BaseException) -> ApiError:
    """What a client is told when its request ended with an exception in the engine."""
    if isinstance(error, RequestCancelled):
        return ApiError(503, "the server ended this request; try again", code="cancelled")
    return ApiError(500, f"generation failed: {type(error).__name__}: {error}", code="generation_failed")


def install(app: FastAPI) -> None:
    """Every error of this app leaves in one form."""

    @app.exception_handler(ApiError)
    async def own(_: Request, error: ApiError) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.status in (429, 503) else None
        if error.status == 401:
            headers = {"WWW-Authenticate": "Bearer"}
        return JSONResponse(error.body, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(validation_body(error.errors()), 400)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(500, f"internal error: {type(error).__name__}"), 500)


def validation_body(errors: Any) -> dict[str, Any]:
    """The first thing that is wrong, with the field's name."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return error_body(400, f"the body is no valid JSON: {first['ctx']['error']}", code="invalid_json")
    # of a field with several possible types the name is enough
    field = ".".join(place)
    if first["type"] == "extra_forbidden":
        return error_body(400, f"the field {field!r} is not supported here", field, "unknown_field")
    if first["type"] == "missing" and not place:
        return error_body(400, "the request needs a JSON body with Content-Type: application/json")
    reason = first["msg"].removeprefix("Value error, ")
    return error_body(400, f"{field}: {reason}" if field else reason, field or None, "invalid_value")
