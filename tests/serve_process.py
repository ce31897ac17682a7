"""`branchwise serve` as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from serve_rig import wait_for

#: a machine that is busy with other things may take its time to import torch
PATIENCE_SECONDS = 240


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


@contextmanager
def running(arguments: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """The command as a process, killed if it has not ended by then."""
    command = [sys.executable, "-c", "from branchwise.cli import main; main()", *arguments]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env={**os.environ, **environment})
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_until_up(process: subprocess.Popen, url: str, log: Path) -> None:
    def is_up() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    wait_for(is_up, PATIENCE_SECONDS)
