"""A peer in another process, as methods that `runner` can call.

A worker that dies takes with it the request in flight, no more: the next request starts another one. A peer that cannot
be opened at all is not tried again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..methods import Run
from ..stopwatch import Timing
from .assignment import Assignment
from .process import COMMAND, WorkerDied, WorkerProcess

#: loading and converting a model of some gigabytes, or a prompt on a slow machine, stays far below this
LIMIT_SECONDS = 1800.0


#: folders before a file's name, but not those of an address on the network
FOLDERS = re.compile(r"(?<![\w:/])/(?:[^\s/'\"]+/)+")


class PeerFailed(RuntimeError):
    """What went wrong in a worker, in its own words, but for the folders of this machine."""

    def __init__(self, message: str) -> None:
        super().__init__(FOLDERS.sub("", message))


class RemotePeer:
    """One peer.

    Args:
        given: what the worker is to load.
        missing: why it cannot run here, if that is known beforehand.
        command: of the worker.
        limit_seconds: longest wait for an answer.

    Attributes:
        facts: what the worker said of itself; empty until it was opened.
        idle_seconds: time between an answer and the next request.
        idle_cpu_seconds: processor time of the worker within it.
    """

    def __init__(
        self,
        given: Assignment,
        missing: str | None = None,
        command: Sequence[str] = COMMAND,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self.facts: dict[str, Any] = {}
        self.idle_seconds = self.idle_cpu_seconds = 0.0
        self._given = given
        self._failure = missing
        self._command = command
        self._limit_seconds = limit_seconds
        self._process: WorkerProcess | None = None

    def method(self, name: str) -> RemoteMethod:
        """One way to decode with it.

        Raises:
            PeerFailed: it cannot be had.
        """
        self.ask({"make": name})
        return RemoteMethod(self, name)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            PeerFailed: an error, or the worker's death.
        """
        if self._failure is not None:
            raise PeerFailed(self._failure)
        if self._process is None:
            self._open()
        return self._exchange(request)

    def close(self) -> None:
        """Ends the worker."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _open(self) -> None:
        self._process = WorkerProcess(self._command, self._given.threads)
        try:
            self.facts = self._exchange({"open": asdict(self._given)})["facts"]
        except PeerFailed as error:
            self._failure = str(error)
            self.close()
            raise

    def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        try:
            answer = self._process.ask(request, self._limit_seconds)
        except WorkerDied as death:
            self._process = None
            raise PeerFailed(f"the worker {death}") from None
        if "run" in request:  # before the first run it is still settling
            self.idle_seconds += answer["idle"][0]
            self.idle_cpu_seconds += answer["idle"][1]
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer


class RemoteMethod:
    """See `methods.Method`."""

    nodes = 1

    def __init__(self, peer: RemotePeer, name: str) -> None:
        self.name = name
        self._peer = peer

    def run(self, prompt: Sequence[int], max_new_tokens: int, seed: int) -> Run:
        """See `methods.Method.run`."""
        request = {"run": self.name, "prompt": list(prompt), "tokens": max_new_tokens, "seed": seed}
        answer = self._peer.ask(request)
        return Run(tuple(answer["tokens"]), Timing(**answer["timing"]))
