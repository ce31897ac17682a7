"""``branchwise train``: from a model to data, to a head, to figures, and what is said when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from branchwise.cli import app
from branchwise.cli_train import parse_count
from tiny_folder import save_tiny_model

RUN = CliRunner()
#: what fits the tiny model's context
SHORT = ("--answer-tokens", 12, "--longest", 120)


def run(*words: object) -> str:
    result = RUN.invoke(app, ["train", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def fails(*words: object) -> str:
    result = RUN.invoke(app, ["train", *map(str, words)])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny", chat=True)


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "dialogues"
    run(
        "data",
        "--target",
        model,
        "--out",
        folder,
        "--tokens",
        "0.6k",
        "--answer-tokens",
        12,
        "--longest",
        120,
        "--lanes",
        8,
    )
    return folder


def test_from_a_model_to_a_head_that_auto_finds(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "head"
    common = ("--target", model, "--data", data, "--out", out, "--steps", 3, "--batch-tokens", 300)
    assert "head: 3 steps" in run("eagle3", *common, "--draft-vocabulary", 40)
    assert "add --resume" in fails("eagle3", *common, "--draft-vocabulary", 40)
    run("eagle3", *common, "--draft-vocabulary", 40, "--resume")
    short = ("--target", model, "--max-new-tokens", 6)
    lines = run("evaluate", "--head", out, *short, "--data", data, "--limit", 1)
    assert "mixed-65" in lines and "1/1" in lines and "the head can draft: all " in lines
    record = json.loads((out / "evaluation.json").read_text())
    assert record["settings"]["tree-9"]["equal"] == record["settings"]["tree-9"]["prompts"] == 1
    assert record["provenance"]["versions"]["torch"] and record["head"] == "eagle"

    small = tmp_path / "heads" / "small"
    shown = run("ship", "--head", out, "--target", model, "--data", data, "--out", small)
    assert "first choices" in shown and "output rows in int8, for " in shown
    monkeypatch.setenv("BRANCHWISE_HEADS", str(small.parent))
    told = RUN.invoke(app, ["generate", "abc", "--model", str(model), "--json", "--max-new-tokens", "8"])
    assert json.loads(told.stdout)["drafter_parts"] == ["ngram", "recycling", "eagle (small)"]
    assert "small (eagle, 0." in RUN.invoke(app, ["doctor"]).stdout

    questions = tmp_path / "dev.jsonl"
    rows = [{"question_id": n, "category": name, "turns": ["abc def"]} for n, name in enumerate(("chat", "maths"))]
    questions.write_text("\n".join(map(json.dumps, rows)))
    lines = run("evaluate", "--head", small, *short, "--prompts", questions, "--budgets", 5, "--levels", 2)
    assert "chat" in lines and set(json.loads((small / "evaluation.json").read_text())["coverage"]) == {
        "", "chat", "maths"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options"), [("block", ("--layers", 1, "--block-size", 4, "--anchors", 4)), ("medusa", ("--heads", 2))]
)
def test_the_other_kinds_from_a_model_to_figures(
    kind: str, options: tuple[object, ...], model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "head"
    common = ("--target", model, "--data", data, "--out", out)
    assert "head: 2 steps" in run(kind, *common, "--steps", 2, "--batch-tokens", 300, *options)
    short = ("--target", model, "--data", data, "--limit", 1, "--max-new-tokens", 6)
    lines = run("evaluate", "--head", out, *short, "--budgets", 5)
    assert "mixed-5" in lines and "the head can draft: all 100.00%" in lines
    assert json.loads((out / "evaluation.json").read_text())["head"] == kind
    small = tmp_path / "small"
    run("ship", "--head", out, "--target", model, "--data", data, "--out", small, "--layers", "bf16")
    lines = run("evaluate", "--head", small, *short, "--budgets", 5)
    assert f"{kind}" == json.loads((small / "head.json").read_text())["kind"] and "mixed-5" in lines


def test_prompts_and_texts_are_data_too(model: Path, tmp_path: Path) -> None:
    prompts, text = tmp_path / "prompts.txt", tmp_path / "text.txt"
    prompts.write_text("what is this?\nand that?\n")
    text.write_text("abc def. " * 30)
    shown = run(
        "data", "--target", model, "--out", tmp_path / "answers", "--prompts", prompts, "--engine", "auto", *SHORT
    )
    assert "answers: 2 sequences" in shown and "(prompt " in shown
    assert "texts: " in run("data", "--target", model, "--out", tmp_path / "texts", "--text", text)


def test_wrong_options_are_said(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    assert "--steps or --minutes" in fails("medusa", "--target", model, "--data", data, "--out", out)
    steps = ("--target", model, "--out", out, "--steps", 2)
    assert "no training data" in fails("medusa", *steps, "--data", tmp_path)
    assert "keep or recompute" in fails("medusa", *steps, "--data", data, "--features", "forget")
    assert "one of the two" in fails("evaluate", "--head", out, "--target", model)
    asked = ("evaluate", "--head", out, "--target", model, "--data", data)
    assert "from 2 on" in fails(*asked, "--budgets", "17,x")
    assert "goes with --prompts" in fails(*asked, "--limit-per-category", 2)
    shipped = ("ship", "--head", out, "--target", model, "--data", data, "--out", tmp_path / "small")
    assert "one of auto, int8, bf16" in fails(*shipped, "--layers", "int3")
    assert "exceeds the target's context" in fails("data", "--target", model, "--out", out, "--longest", 1000)
    assert "goes with engine='native'" in fails("data", "--target", model, "--out", out, "--weights", "int8")
    assert "give one" in fails(
        "data", "--out", out, "--prompts", data / "dataset.json", "--text", data / "dataset.json"
    )


@pytest.mark.parametrize(("text", "count"), [("12", 12), ("300k", 300_000), ("1.5M", 1_500_000)])
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "many", "0", "-3k"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_count(text)
