"""`branchwise serve` as a process: it comes up, answers, and ends on SIGTERM with its streams complete."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai

from serve_rig import wait_for
from tiny_folder import save_tiny_model

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


def test_the_command_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "tiny", chat=True)
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = ["--port", str(port), "--dtype", "float64", "--threads", "1", "--drafter", "ngram", "--budget", "auto"]
    options += ["--grace-seconds", str(PATIENCE_SECONDS)]
    log = tmp_path / "log"
    with running(["serve", "--model", str(tmp_path / "tiny"), *options], log, BRANCHWISE_API_KEY="secret") as process:

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(is_up, PATIENCE_SECONDS)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret", timeout=PATIENCE_SECONDS)
        assert client.models.list().data[0].id == "tiny"
        stream = client.completions.create(model="tiny", prompt="secret words", max_tokens=200, stream=True)
        first = next(iter(stream))
        process.send_signal(signal.SIGTERM)
        rest = list(stream)
        assert first.choices[0].finish_reason is None and rest[-1].choices[0].finish_reason in ("length", "stop")
        assert process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)
    said = log.read_text()
    assert "secret" not in said, "neither the key nor the prompt is in the log"
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {record["event"] for record in records} == {"response", "completion"}
    assert f"tiny on {url}" in said
