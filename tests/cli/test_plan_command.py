"""``branchwise plan``: tables, simulations, the check, and what is said when something does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from branchwise.cli import app
from branchwise.plan import commands
from plan_rig import SLOW
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
ACCEPTANCE = {
    "format": "branchwise-acceptance",
    "version": 1,
    "source": "an afternoon",
    "by_rank": [0.4, 0.2],
    "host_seconds": {"1": {"draft": 0, "other": 1e-5}, "33": {"draft": 2e-5, "other": 2e-5}},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "large.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "acceptance.json").write_text(json.dumps(ACCEPTANCE), encoding="utf-8")
    return folder


def call(files: Path, *words: object, hardware: str = "h100") -> tuple[int, str]:
    given = ("--hardware", hardware, "--config", files / "large.json", "--acceptance", files / "acceptance.json")
    result = CliRunner().invoke(app, ["plan", *map(str, (*given, *words))])
    return result.exit_code, result.output


def test_a_table_of_batches(files, tmp_path):
    out = tmp_path / "plan.json"
    code, text = call(files, "--batch", "1,64,512", "--context", 64, "--engine", "compiled", "--json", out)
    assert code == 0, text
    assert "large: 8.03 billion parameters, 7.50 active, bfloat16" in text
    assert "80% of its bandwidth" in text and "acceptance: an afternoon" in text
    assert "A prediction by a model, not a measurement. Left out:" in text
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [row["batch"] for row in record["batches"]] == [1, 64, 512]
    assert record["batches"][0]["budget"] > 8 > record["batches"][2]["budget"]
    assert f"Trees pay below {record['crossover']} lanes" in text
    assert all(row["fits"] for row in record["batches"]) and "does not fit" not in text
    assert f"at most {record['most_lanes']} lanes fit" in text
    assert "does not fit" in call(files, "--batch", 512, "--context", 4096)[1]
    assert record["left_out"] and record["provenance"]["versions"]


@pytest.mark.parametrize(
    ("draft", "said"),
    [("layers:1", "drafts: 1 of 32 layers of large"), ("large.json", "drafts: large;"), ("lookup", "drafts: lookup;")],
)
def test_who_drafts(files, draft, said):
    code, text = call(files, "--batch", 4, "--draft", files / draft if draft.endswith("json") else draft, "--no-host")
    assert code == 0, text
    assert said in text and "the host's time is left out" in text


def test_a_trace(files, tmp_path):
    out = tmp_path / "trace.json"
    options = ("--engine", "compiled", "--trace", "poisson:4", "--duration", 5, "--output-tokens", 20, "--price", 3)
    code, text = call(files, *options, "--replicas", 2, "--json", out)
    assert code == 0, text
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["served"] == record["requests"] > 5
    assert f"{record['served']} of {record['requests']} requests served" in text
    assert "per million output tokens" in text and "to the first token" in text
    assert call(files, *options, "--replicas", 2)[1] == text, "one seed, one answer"


def test_the_check(files, tmp_path, monkeypatch):
    folder = save_tiny_model(tmp_path / "tiny")
    monkeypatch.setattr(commands, "measure_hardware", lambda place, dtype, say: SLOW)
    met = {"met": True, "tolerance": 0.2}
    monkeypatch.setattr(commands, "check_forwards", lambda *_: met)
    words = ["plan", "--check", "--config", str(folder), "--save-hardware", str(tmp_path / "here.json")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "within 20%" in result.output, result.output
    assert json.loads((tmp_path / "here.json").read_text(encoding="utf-8"))["name"] == "slow"
    met["met"] = False
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and "NOT within 20%" in result.output


def test_this_machine_is_measured_and_kept(files, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "measure_hardware", lambda place, dtype, say: SLOW)
    kept = tmp_path / "here.json"
    code, text = call(files, "--batch", 1, "--save-hardware", kept, hardware="this")
    assert code == 0, text
    code, again = call(files, "--batch", 1, hardware=str(kept))
    assert code == 0 and again == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch", "much"), "must be like 1..512"),
        (("--engine", "magic"), "no engine is named 'magic'"),
        (("--dtype", "int3"), "no dtype is named 'int3'"),
        (("--devices", 3), "32 heads of large cannot be shared by 3 devices"),
        (("--draft", "layers:x"), "needs a number of layers, got 'x'"),
        (("--draft", "layers:33"), "layers must be 1 to 32"),
        (("--largest", 99), "the largest cannot be 99"),
        (("--method", "tree"), "no record of branchwise bench"),
        (("--replicas", 2), "--replicas has no meaning with a plan of batches; it goes with --trace"),
        (("--trace", "poisson:1", "--duration", 1, "--context", 5), "--context has no meaning with --trace"),
        (("--trace", "poisson:1"), "needs --duration"),
        (("--trace", "poisson:1", "--duration", 1, "--budget", "much"), "auto or a number of nodes"),
        (("--trace", "poisson:1", "--duration", 1, "--price", -1), "--price must be a number from 0 on"),
        (("--trace", "none.jsonl", "--spread", 1), "--spread has no meaning with a trace from a file"),
        (("--repeats", 3), "--repeats has no meaning with a plan; it goes with --check"),
        (("--save-hardware", "x.json"), "goes with --hardware this or --check"),
        (("--threads", 2), "--device and --threads are for measuring"),
        (("--check",), "--hardware, --acceptance has no meaning with --check"),
        (("--json", "/nowhere/plan.json"), "does not exist"),
    ],
)
def test_options_that_do_not_fit_are_named(files, words, said):
    code, text = call(files, *words)
    assert code == 2, text
    assert said in " ".join(text.split())


def test_what_is_missing_is_named(files):
    result = CliRunner().invoke(app, ["plan", "--config", str(files / "large.json")])
    assert result.exit_code == 2 and "a plan needs --hardware, --acceptance" in result.output
    code, text = call(files, hardware="h300")
    assert code == 2 and "no machine is named 'h300'" in text
    result = CliRunner().invoke(app, ["plan", "--check", "--draft", "layers:1", "--devices", "2"])
    assert result.exit_code == 2 and "--draft, --devices has no meaning with --check" in result.output
