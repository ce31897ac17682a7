"""A real server on a free port, in a thread, on a tiny random model; and sockets that do not behave."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from branchwise import Engine
from branchwise.hub import load
from branchwise.serve.run import Server
from branchwise.serve.settings import ServerSettings
from branchwise.target import HuggingFaceTarget
from tiny_folder import save_tiny_model

NAME = "tiny"


@cache
def model_and_tokenizer() -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder), chat=True)
        return load(folder, dtype=torch.float64)


class SlowTarget(HuggingFaceTarget):
    """Every forward over trees takes a while, so that something can happen in the middle of a text."""

    def __init__(self, model: Any, seconds: float = 0.02) -> None:
        super().__init__(model)
        self._forward_seconds = seconds

    def forward(self, trees, feature_layers=()):
        time.sleep(self._forward_seconds)
        return super().forward(trees, feature_layers)


@contextlib.contextmanager
def serving(
    slow: bool | float = False, engine: dict | None = None, send_buffer: int | None = None, **settings: Any
) -> Iterator[Server]:
    """A server that is up; it has ended afterwards, and its engine has no lanes left.

    Args:
        slow: forwards take 0.02 s, or so many seconds.
        engine: options of the engine.
        send_buffer: bytes of the socket's.
        settings: of the server.
    """
    model, tokenizer = model_and_tokenizer()
    options = {"drafter": "none", "budget": 1} if slow else {"budget": 8}
    listening = socket.socket()
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listening.bind(("127.0.0.1", 0))
    target = model if slow is False else SlowTarget(model) if slow is True else SlowTarget(model, slow)
    own = Engine(target, tokenizer, **{**options, **(engine or {})})
    server = Server(own, ServerSettings(NAME, **{"grace_seconds": 1.0, **settings}), port=0)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not end"
        assert own.target.cache.lanes == (), "a lane has leaked"


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def is_idle(server: Server) -> bool:
    counts = server.engine.statistics
    return counts.running == counts.reading == counts.waiting == 0 and server.app.state.service._open == 0


class RawClient:
    """One connection, by hand."""

    def __init__(self, server: Server, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        host, port = server.url.removeprefix("http://").split(":")
        self.socket.settimeout(20)
        self.socket.connect((host, int(port)))

    def post(self, path: str, body: bytes | dict, *headers: str, length: int | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", *headers]
        if not any(line.lower().startswith("transfer-encoding") for line in headers):
            lines.append(f"Content-Length: {len(data) if length is None else length}")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # turned away before all of it was sent
            self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)

    def read_until(self, mark: bytes) -> bytes:
        data = b""
        while mark not in data:
            piece = self.socket.recv(65536)
            if not piece:
                break
            data += piece
        return data

    def status_and_body(self) -> tuple[int, dict]:
        data = self.read_until(b"\r\n\r\n")
        head, _, rest = data.partition(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(headers[b"content-length"])
        while len(rest) < length:
            rest += self.socket.recv(65536)
        return int(head.split()[1]), json.loads(rest)

    def close(self) -> None:
        self.socket.close()


class Lines(logging.Handler):
    """Collects the server's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @contextlib.contextmanager
    def listening(self) -> Iterator[list[dict]]:
        logger = logging.getLogger("branchwise.serve")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        found: list[dict] = []
        try:
            yield found
        finally:
            logger.removeHandler(self)
            found.extend(map(json.loads, self.lines))
