"""The child process: one peer, one request at a time, JSON lines on stdin and stdout.

    {"open": Assignment}                                       -> {"facts": {...}}
    {"make": METHOD}                                           -> {}
    {"run": METHOD, "prompt": [...], "tokens": N, "seed": S}   -> {"tokens": [...], "timing": {...}}

Every answer also has ``idle``: seconds since the previous answer, and processor seconds of this process within them,
which should be none. What goes wrong is answered as {"error": ...}. The end of stdin is the end of the process, so that
no worker outlives a parent that was killed. Libraries print to stdout as they like: it is stderr here.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any, TextIO

from ...warning import BranchwiseWarning
from ..methods import Method
from .assignment import Assignment, Peer
from .configuration import OWN

#: the part of a peer's name before the slash -> module and class
PEERS = {
    "transformers": ("transformers_peer", "TransformersPeer"),
    "llama.cpp": ("llama_cpp_peer", "LlamaCppPeer"),
    "openvino-genai": ("genai_peer", "GenAiPeer"),
    OWN: ("branchwise_peer", "BranchwisePeer"),
}


class Worker:
    """Answers requests."""

    def __init__(self) -> None:
        self._peer: Peer | None = None
        self._methods: dict[str, Method] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One answer; never raises for what a peer does wrong."""
        try:
            with warnings.catch_warnings():
                # a drafter that gave up would be measured as plain decoding under its own name
                warnings.simplefilter("error", BranchwiseWarning)
                return self._act(request)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        if "open" in request:
            self._peer = open_peer(Assignment(**request["open"]))
            return {"facts": dict(self._peer.facts)}
        if "make" in request:
            self._method(request["make"])
            return {}
        run = self._method(request["run"]).run(request["prompt"], request["tokens"], request["seed"])
        return {"tokens": list(run.tokens), "timing": asdict(run.timing)}

    def _method(self, name: str) -> Method:
        if name not in self._methods:
            assert self._peer is not None, "the first request opens the peer"
            self._methods[name] = self._peer.method(name)
        return self._methods[name]


def open_peer(given: Assignment) -> Peer:
    """Loads the library and the model."""
    module, name = PEERS[given.peer.partition("/")[0]]
    peer: Peer = getattr(import_module(f".{module}", __package__), name)(given)
    return peer


def requests(stream: TextIO) -> Iterator[dict[str, Any]]:
    """The lines of a stream, until it ends."""
    for line in iter(stream.readline, ""):
        yield json.loads(line)


def main() -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    answered = time.perf_counter(), time.process_time()
    for request in requests(sys.stdin):
        idle = time.perf_counter() - answered[0], time.process_time() - answered[1]
        answers.write(json.dumps(worker.answer(request) | {"idle": idle}) + "\n")
        answers.flush()
        answered = time.perf_counter(), time.process_time()
    # no tear-down: some libraries wait for threads of theirs, or crash
    os._exit(0)


if __name__ == "__main__":
    main()
