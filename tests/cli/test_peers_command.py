"""`branchwise bench peers` on a tiny model: real workers, and a peer that cannot run here keeps its lines."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from branchwise.cli import app
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # sampling defaults of a checkpoint are nobody's
    return save_tiny_model(tmp_path_factory.mktemp("peers"), chat=True, do_sample=True, temperature=0.7)


def peers(*words: object) -> Result:
    return CliRunner().invoke(app, ["bench", "peers", *map(str, words)])


def test_a_whole_run(model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    rows = [{"question_id": i, "category": f"c{i}", "turns": [text]} for i, text in enumerate(["abc abc", "a story"])]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["--model", model, "--dtype", "float64", "--threads", 1, "--max-new-tokens", 12]
    asked = "transformers,llama.cpp:plain,branchwise:plain,branchwise:mixed-9,branchwise:auto"
    out, picture = tmp_path / "r.json", tmp_path / "p.png"
    plot = ["--plot", picture] if importlib.util.find_spec("matplotlib") else []  # the oldest set-up lacks it
    result = peers(prompts, *options, "--peers", asked, "--json", out, *plot)
    assert result.exit_code == 1, "a peer that fails is no success"
    record = json.loads(out.read_text(encoding="utf-8"))
    last = json.loads(result.stdout.splitlines()[-1])
    assert last == {key: value for key, value in record.items() if key != "rows"}
    ran = {name: method for name, method in record["methods"].items() if method["error"] is None}
    assert list(ran) == [
        *(f"transformers:{method}" for method in ("plain", "lookup-3", "lookup-10", "early-exit")),
        *(f"branchwise:{method}" for method in ("plain", "mixed-9", "auto")),
    ]
    # float64: everybody's tokens are everybody's
    assert all((method["overall"]["equal"], method["overall"]["compared"]) == (2, 2) for method in ran.values())
    texts = {(row["question_id"], tuple(row["token_ids"])) for row in record["rows"]}
    assert len(texts) == 2 and len(record["rows"]) == 2 * len(ran)
    assert all(method["overall"]["tokens_per_step"] >= 1 for method in ran.values())
    assert record["best"].startswith("branchwise:") and record["fastest_peer"].startswith("transformers:")
    assert record["peers"]["transformers"]["weights"] == "float64"
    assert record["provenance"]["model"]["weights_sha256"] and record["provenance"]["threads"] == 1
    assert record["peers"]["branchwise"]["idle_cpu_share"] < 0.1
    there_is_one = any(importlib.util.find_spec(package) for package in ("llama_cpp", "xllamacpp"))
    why = "--gguf FILE" if there_is_one else "pip install 'branchwise[peers]'"
    assert why in record["methods"]["llama.cpp:plain"]["error"]
    assert "llama.cpp:plain (FAILED)" in result.stdout and "llama.cpp:plain failed: " in result.stdout
    assert str(tmp_path) not in out.read_text(encoding="utf-8")
    assert not plot or picture.stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--peers", "vllm"], "no peer is named 'vllm'"),
        (["--peers", "branchwise:mixed-0"], "0"),
        (["--peers", "branchwise:mixed+head-9"], "--head"),
        (["--gguf", "nowhere.gguf"], "there is no file 'nowhere.gguf'"),
        (["--max-new-tokens", "1"], "max-new-tokens must be >= 2"),
        (["--categories", "cooking"], "no prompt has the category 'cooking'; there are writing, facts"),
    ],
)
def test_what_is_refused_before_anything_starts(words: list[str], told: str) -> None:
    result = peers(*words)
    assert result.exit_code == 2
    assert told in result.stderr


def test_peers_sample_as_well(model: Path) -> None:
    options = ["--model", model, "--threads", 1, "--max-new-tokens", 8, "--temperature", 0.7, "--limit-per-category", 1]
    result = peers(*options, "--categories", "facts", "--peers", "branchwise:plain,branchwise:mixed-9")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert all("equal" not in method["overall"] for method in record["methods"].values())


@pytest.mark.model
@pytest.mark.parametrize(("peer", "package"), [("llama.cpp", "xllamacpp"), ("openvino-genai", "openvino_genai")])
def test_other_engines_write_their_own_plain_output_with_drafts(peer: str, package: str) -> None:
    # these engines are no part of the development set-up: they are for the machine that measures
    pytest.importorskip(package, reason=f"{package} is for the machine that measures")
    options = ["--categories", "editing", "--limit-per-category", 1, "--threads", 1, "--max-new-tokens", 8]
    result = peers(*options, "--peers", f"{peer}:plain,{peer}:lookup-3")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    drafted = record["methods"][f"{peer}:lookup-3"]["overall"]
    assert (drafted["equal"], drafted["compared"], drafted["new_tokens"]) == (1, 1, 8)
    assert record["peers"][peer]["weights"] == "Q4_1 GGUF"
