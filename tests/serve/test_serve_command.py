"""`branchwise serve` as a process: it comes up, answers, and ends on SIGTERM with its streams complete."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import openai

from serve_process import PATIENCE_SECONDS, free_port, running, wait_until_up
from tiny_folder import save_tiny_model


def test_the_command_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "tiny", chat=True)
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = ["--port", str(port), "--dtype", "float64", "--threads", "1", "--drafter", "ngram", "--budget", "auto"]
    options += ["--grace-seconds", str(PATIENCE_SECONDS)]
    log = tmp_path / "log"
    with running(["serve", "--model", str(tmp_path / "tiny"), *options], log, BRANCHWISE_API_KEY="secret") as process:
        wait_until_up(process, url, log)
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
