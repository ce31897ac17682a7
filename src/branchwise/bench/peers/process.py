"""A child process that answers one JSON line with one JSON line. Knows pipes and deaths; knows no peer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from threading import Timer
from typing import Any

COMMAND = (sys.executable, "-m", "branchwise.bench.peers.worker")
#: threads that wait busily for longer than a few milliseconds would take the processor from the peer whose turn it is
BUSY_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
CLOSE_SECONDS = 5.0


class WorkerDied(RuntimeError):
    """The process ended instead of answering; the message says how, with the last lines it wrote."""


class WorkerProcess:
    """One process.

    Args:
        command: what to run.
        threads: told to it through the environment, for libraries that read it there.
    """

    def __init__(self, command: Sequence[str], threads: int) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  read after the process has died
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(os.environ, threads),
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the parent, which closes the others
        )

    def ask(self, request: Mapping[str, Any], limit_seconds: float) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
            WorkerDied: there is none; the process has ended, or was ended after ``limit_seconds``.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        late = Timer(limit_seconds, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            is_late = not late.is_alive()
            late.cancel()
        if not line.endswith("\n"):
            how = f"gave no answer within {limit_seconds:.0f} s" if is_late else _how_it_ended(self._process.wait())
            self.close()
            raise WorkerDied(how + self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends it: kindly, then by force."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(CLOSE_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").strip().splitlines()
        return f": {' '.join(' '.join(lines[-2:]).split())}" if lines else ""


def _environment(own: Mapping[str, str], threads: int) -> dict[str, str]:
    kept = {name: value for name, value in own.items() if name not in BUSY_WAITING}
    return kept | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
