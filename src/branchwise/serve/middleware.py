"""Around every request: the size of its body, who sends it, and one line in the log.

The log has one JSON object per line and no text of any user unless that was asked for.
"""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections import Counter
from typing import Any

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .page_files import PREFIX as PAGE_PREFIX
from .settings import ServerSettings

logger = logging.getLogger("branchwise.serve")

#: paths that need no key; the page asks for it itself
OPEN_PATHS = frozenset({"/", "/health", "/metrics", "/version"})


def log(event: str, **fields: Any) -> None:
    """One line."""
    logger.info(json.dumps({"event": event, **fields}, ensure_ascii=False))


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_PATHS or path.startswith(PAGE_PREFIX)


class Gate:
    """Turns away bodies that are too large and callers without the key; counts and logs every response.

    Args:
        app: what is behind it.
        settings: limits and the key.
        responses: counts by route and status.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, responses: Counter[tuple[str, int]]) -> None:
        self._app = app
        self._settings = settings
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), [0]

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, self._counted(receive), noted)
        except ApiError as error:
            if status[0]:
                raise
            headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {"Connection": "close"}
            await JSONResponse(error.body, error.status, headers)(scope, receive, noted)
        finally:
            # the route's own path, so that whoever asks for random paths does not fill the counters
            route = getattr(scope.get("route"), "path", "other")
            self._responses[route, status[0]] += 1
            seconds = round(time.perf_counter() - began, 4)
            log("response", method=scope["method"], route=route, status=status[0], seconds=seconds)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._settings.body_bytes:
            raise self._too_large()
        key = self._settings.api_key
        if key is not None and not is_open(scope["path"]):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                raise ApiError(401, "this server needs a key: send Authorization: Bearer ...", code="invalid_api_key")

    def _counted(self, receive: Receive) -> Receive:
        """``receive``, raising once more bytes came than allowed: a length need not be told beforehand."""
        seen = [0]

        async def counted() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                seen[0] += len(message.get("body", b""))
                if seen[0] > self._settings.body_bytes:
                    # whoever reads the body turns every other kind of exception into a 400
                    raise HTTPException(413, str(self._too_large()))
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than the {self._settings.body_bytes} bytes taken here")
