"""Errors that somebody meets on the first day: one line, with the value and the remedy, and no traceback."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM
from typer.testing import CliRunner, Result

from branchwise import cli
from branchwise.bench import runner
from branchwise.cli import app
from branchwise.cli_errors import message_of
from branchwise.decode.session import Session
from branchwise.hub import memory
from tiny_folder import character_tokenizer, save_tiny_model

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def generate(model: object, *arguments: object) -> Result:
    return run("generate", *arguments, "--model", model, "--max-new-tokens", 4, "--threads", 1)


def one_line_error(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("branchwise: ") and result.stderr.count("\n") == 1
    assert len(result.stderr) < 500
    return result.stderr


def test_files_that_are_no_prompt(model: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    latin = one_line_error(generate(model, "--file", tmp_path / "latin.txt"))
    assert "latin.txt is not UTF-8 text (byte 3); convert it first" in latin
    absent = one_line_error(generate(model, "--file", tmp_path / "absent.txt"))
    assert absent.endswith("absent.txt: No such file or directory\n")
    assert "Is a directory" in one_line_error(generate(model, "--file", tmp_path))


def test_an_argument_that_is_no_text(model: Path) -> None:
    """The shell hands over bytes; Python keeps those that are no UTF-8 as lone surrogates."""
    assert "the prompt is not UTF-8 text (byte 3)" in one_line_error(generate(model, "caf\udce9"))


def test_a_model_of_another_kind(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=60, hidden_size=16, state_size=4, num_hidden_layers=1)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    assert "cannot run 'mamba' exactly: it has a recurrent state" in one_line_error(generate(tmp_path, "hello"))


def test_no_such_model() -> None:
    assert "Did you mean 'default'?" in one_line_error(generate("defualt", "hello"))
    assert "'nobody/nothing' is not on this machine" in one_line_error(generate("nobody/nothing", "hello"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 400 bytes."),
        MemoryError(),
    ],
)
def test_lack_of_memory(model: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Session) -> None:
        raise error

    monkeypatch.setattr(Session, "step", fails)
    told = generate(model, "hello", "--no-stream")
    assert told.exit_code == 2 and "Traceback" not in told.output
    assert "branchwise: out of memory (" in told.stderr and "take a smaller model, --dtype bfloat16" in told.stderr


def test_a_fault_of_the_program_keeps_its_traceback(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert message_of(RuntimeError("a bug")) is None and message_of(KeyError("a bug")) is None
    monkeypatch.setattr(Session, "step", lambda self: {}["a bug"])
    assert isinstance(generate(model, "hello").exception, KeyError)


def test_weights_that_do_not_fit_are_announced(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 1000)
    result = generate(model, "hello")
    assert result.exit_code == 0
    assert result.stderr.startswith("branchwise: the weights in ")


def test_a_typo_in_an_option_is_answered_with_the_right_one(model: Path) -> None:
    result = generate(model, "hello", "--temperatur", 1)
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert "No such option: --temperatur" in result.stderr and "--temperature" in result.stderr
    assert "Did you mean 'generate'?" in run("generat").stderr


def test_a_terminal_without_the_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back what main() changes
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    monkeypatch.setattr(cli, "app", lambda: cli._write("café"))
    cli.main()
    assert ascii_only.buffer.getvalue() == b"caf?"


def test_a_reader_that_has_left() -> None:
    """`branchwise models list | head -0`: an exit status, no traceback."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "branchwise", "models", "list"]
    try:
        result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write)
    assert result.returncode == 1
    assert result.stderr == ""


def test_an_interrupted_benchmark_prints_what_it_has(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"question_id": i, "category": "c", "topic": "t", "turns": [f"hello {i}"]} for i in range(3)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempts, attempt = [], runner._attempt

    def interrupted(*arguments: object) -> object:
        attempts.append(arguments)
        if len(attempts) == 7:  # making, warm-up and the first prompt of two methods are over
            raise KeyboardInterrupt
        return attempt(*arguments)

    monkeypatch.setattr(runner, "_attempt", interrupted)
    options = ("--methods", "plain,tree", "--budgets", 5, "--max-new-tokens", 4, "--model", model, "--threads", 1)
    result = run("bench", prompts, *options, "--json", tmp_path / "result.json")
    assert result.exit_code == 130, result.output
    assert "interrupted" in result.stderr
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["interrupted"] is True
    assert [row["question_id"] for row in record["rows"]] == ["0", "0"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell: str) -> None:
    """Asked of the parser as a shell would ask it; nothing is installed."""
    instructions = {"_BRANCHWISE_COMPLETE": f"complete_{shell}", "COMP_WORDS": "branchwise gen", "COMP_CWORD": "1"}
    instructions |= {"_TYPER_COMPLETE_ARGS": "branchwise gen", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = "import sys; sys.argv = ['branchwise']; from branchwise.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **instructions}, capture_output=True, text=True, check=False
    )
    assert "generate" in result.stdout


def test_a_server_says_at_once_where_it_cannot_listen() -> None:
    # an environment without the extra is asked for the extra first
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = one_line_error(run("serve", "--model", "no-such/model", "--port", port))
    assert f"port {port} on 127.0.0.1 is taken; choose another with --port" in told
    assert "from 0 to 65535, got 70000" in one_line_error(run("serve", "--port", 70_000))
    assert "cannot listen on host 'no.such.host.invalid'" in one_line_error(
        run("serve", "--host", "no.such.host.invalid")
    )
