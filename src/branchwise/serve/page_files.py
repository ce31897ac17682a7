"""The page's files: read once, served under an address that changes with their content.

The page itself lies at ``/`` and is asked for anew each time; what it loads lies under ``/page/DIGEST/`` and may be
kept for ever. Nothing comes from elsewhere, and the page's policy forbids browsers to fetch anything from elsewhere.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import FastAPI, Response
from fastapi.requests import Request as HttpRequest

from .errors import ApiError

#: what draws trees, shared with saved pages
DRAWING = ("tree.css", "tree.js")
PREFIX = "/page/"
#: what the page writes where its files lie
PLACEHOLDER = "PAGE_FILES"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
GUARDS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageFiles:
    """What is read from the package, by name."""

    def __init__(self) -> None:
        self._contents = dict(sorted(_read_all()))
        joined = b"\0".join(name.encode() + b"\0" + content for name, content in self._contents.items())
        self.digest = hashlib.sha256(joined).hexdigest()[:16]
        page = self._contents.pop("index.html").decode()
        # relative, so that the server may stand behind a proxy under any path
        self._page = page.replace(PLACEHOLDER, f"{PREFIX[1:]}{self.digest}").encode()

    def page(self, known: str | None) -> Response:
        """The page, or 304 to whoever knows it."""
        tag = f'"{self.digest}"'
        headers = {**GUARDS, "Cache-Control": "no-cache", "ETag": tag}
        if known is not None and tag in known:
            return Response(status_code=304, headers=headers)
        return Response(self._page, media_type=TYPES[".html"], headers=headers)

    def file(self, digest: str, name: str) -> Response:
        """One of its files.

        Raises:
            ApiError: there is no such file, or no longer.
        """
        content = self._contents.get(name)
        if content is None or digest != self.digest:
            raise ApiError(404, "the page has no such file; load the page again")
        headers = {**GUARDS, "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(content, media_type=TYPES[PurePosixPath(name).suffix], headers=headers)


def _read_all() -> list[tuple[str, bytes]]:
    own = [entry for entry in files("branchwise.serve").joinpath("page").iterdir() if entry.is_file()]
    drawing = [files("branchwise.show").joinpath("assets", name) for name in DRAWING]
    return [(entry.name, entry.read_bytes()) for entry in (*own, *drawing)]


def install(app: FastAPI) -> None:
    """Adds the page to an app. Its routes are for browsers and no part of the API's description."""
    own = PageFiles()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(http: HttpRequest) -> Response:
        return own.page(http.headers.get("if-none-match"))

    @app.api_route(PREFIX + "{digest}/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(digest: str, name: str) -> Response:
        return own.file(digest, name)
