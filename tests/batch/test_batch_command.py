"""`branchwise batch`, run in-process on a tiny random model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batch_rig import rows, texts, write_rows
from branchwise.cli import app
from tiny_folder import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", chat=True)


def batch(model: Path, *arguments: object, stdin: str | None = None) -> Result:
    options = ["--model", model, "--dtype", "float64", "--threads", 1, "--max-lanes", 2]
    return CliRunner().invoke(app, ["batch", *map(str, [*arguments, *options])], input=stdin)


def test_answers_come_in_order_and_the_status_tells_of_errors(model: Path, tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", rows(5)), tmp_path / "out.jsonl"
    done = batch(model, source, out)
    assert done.exit_code == 0, done.output
    assert done.stdout == "" and "5 rows answered; 5 in this run" in done.stderr
    again = batch(model, source, out)
    assert again.exit_code == 0 and "5 rows answered; 0 in this run" in again.stderr
    with source.open("a") as stream:
        stream.write('{"prompt": ""}\n')
    assert batch(model, source, out).exit_code == 2, "another input"
    failed = batch(model, source, tmp_path / "more.jsonl")
    assert failed.exit_code == 1 and "6 rows answered, 1 of them with an error" in failed.stderr
    assert (tmp_path / "more.jsonl").read_text().splitlines()[-1].count("is empty") == 1


def test_pipes(model: Path, tmp_path: Path) -> None:
    line = json.dumps({"prompt": "abcabc", "max_tokens": 5}) + "\n"
    piped = batch(model, "-", "-", "--temperature", 0, stdin=line)
    assert piped.exit_code == 0, piped.output
    first = json.loads(piped.stdout)
    # a file that is fed again by a pipe goes on, too
    out = tmp_path / "out.jsonl"
    assert batch(model, "-", out, "--temperature", 0, stdin=line).exit_code == 0
    assert json.loads(out.read_text()) == first
    assert "0 in this run" in batch(model, "-", out, "--temperature", 0, stdin=line).stderr


def test_rows_may_name_the_model_that_is_there(model: Path, tmp_path: Path) -> None:
    made = [{"prompt": "ab", "model": "tiny"}, {"prompt": "ab", "model": "gpt-9"}]
    source = write_rows(tmp_path / "in.jsonl", made)
    assert batch(model, source, tmp_path / "a").exit_code == 1
    statuses = [json.loads(line)["response"]["status_code"] for line in (tmp_path / "a").read_text().splitlines()]
    assert statuses == [200, 404]
    renamed = batch(model, source, tmp_path / "b", "--served-name", "gpt-9")
    assert renamed.exit_code == 1
    statuses = [json.loads(line)["response"]["status_code"] for line in (tmp_path / "b").read_text().splitlines()]
    assert statuses == [404, 200]


def test_the_seed_of_the_file_decides(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"prompt": "ab", "max_tokens": 20}] * 2)
    written = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert batch(model, source, tmp_path / name, "--seed", seed).exit_code == 0
        written.append([texts(json.loads(line)) for line in (tmp_path / name).read_text().splitlines()])
    assert written[0] == written[1] != written[2]
    assert written[0][0] != written[0][1], "two rows with one prompt"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replicas", 2], "--replicas goes with --ray"),
        (["--address", "auto"], "--address goes with --ray"),
        (["--ray", "--tensor-parallel"], "exclude each other"),
        (["--wave-rows", 0], "wave-rows must be >= 1, got 0"),
        (["--seed", -1], "a seed must be in"),
        (["--budget", 0], "must be >= 1"),
        (["--drafter", "psychic"], "no drafter is named 'psychic'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    arguments: list, said: str, model: Path, tmp_path: Path
) -> None:
    source = write_rows(tmp_path / "in.jsonl", rows(1))
    refused = batch(model, source, tmp_path / "out", *arguments)
    assert refused.exit_code == 2 and said in refused.stderr, refused.output
    assert not (tmp_path / "out").exists()


def test_a_pipe_cannot_feed_a_cluster(model: Path, tmp_path: Path) -> None:
    refused = batch(model, "-", tmp_path / "out", "--ray", stdin="{}\n")
    assert refused.exit_code == 2 and "give a file that all of them see" in refused.stderr


def test_a_missing_extra_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "in.jsonl", rows(1))
    for module in ("ray", "ray.data", "ray.serve"):
        monkeypatch.setitem(sys.modules, module, None)
    refused = batch(model, source, tmp_path / "out", "--ray")
    assert refused.exit_code == 2 and "pip install 'branchwise[ray]'" in refused.stderr
