"""`branchwise serve` as a process: it comes up, answers, and ends on SIGTERM with its streams complete."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import openai

from serve_rig import wait_for
from tiny_folder import save_tiny_model


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def test_the_command_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "tiny", chat=True)
    port = free_port()
    command = ["-c", "from branchwise.cli import main; main()", "serve", "--model", str(tmp_path / "tiny")]
    options = ["--port", str(port), "--dtype", "float64", "--threads", "1", "--drafter", "ngram", "--budget", "auto"]
    environment = {**os.environ, "BRANCHWISE_API_KEY": "secret"}
    with subprocess.Popen(
        [sys.executable, *command, *options], stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True)
        reader.start()
        url = f"http://127.0.0.1:{port}"

        def is_up() -> bool:
            assert process.poll() is None, lines
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(is_up, seconds=90)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret", timeout=60)
        assert client.models.list().data[0].id == "tiny"
        stream = client.completions.create(model="tiny", prompt="secret words", max_tokens=200, stream=True)
        first = next(iter(stream))
        process.send_signal(signal.SIGTERM)
        rest = list(stream)
        assert first.choices[0].finish_reason is None and rest[-1].choices[0].finish_reason in ("length", "stop")
        assert process.wait(30) in (0, -signal.SIGTERM)
        reader.join(10)
    said = "".join(lines)
    assert "secret" not in said, "neither the key nor the prompt is in the log"
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert {record["event"] for record in records} == {"response", "completion"}
    assert f"tiny on {url}" in said
