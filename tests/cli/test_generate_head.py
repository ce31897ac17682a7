"""Drafters with a trained head from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from branchwise.cli import app
from tiny_folder import CHARACTERS, SPECIAL, save_tiny_model

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-1 head that hands the target's hidden state on, so that it says what the target said last."""
    folder = tmp_path_factory.mktemp("heads") / "tiny-head"
    folder.mkdir()
    config = {
        "hidden_size": 32,
        "intermediate_size": 8,
        "num_attention_heads": 4,
        "vocab_size": len(SPECIAL) + len(CHARACTERS),
        "bias": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {f"layers.0.self_attn.{name}_proj.weight": torch.zeros(32, 32) for name in "qkvo"}
    tensors |= {f"layers.0.mlp.{name}_proj.weight": torch.zeros(8, 32) for name in ("gate", "up")}
    tensors |= {"layers.0.mlp.down_proj.weight": torch.zeros(32, 8)}
    tensors |= {"layers.0.post_attention_layernorm.weight": torch.ones(32)}
    save_file(tensors | {"fc.weight": torch.cat((torch.zeros(32, 32), torch.eye(32)), 1)}, folder / "model.safetensors")
    return folder


def run(command: str, *arguments: object) -> Result:
    return CliRunner().invoke(app, [command, *map(str, arguments), "--dtype", "float64", "--threads", "1"])


def test_a_head_drafts_and_the_text_stays(model: Path, head: Path) -> None:
    common = ("abc abc", "--model", model, "--max-new-tokens", 20, "--json")
    plain = json.loads(run("generate", *common, "--drafter", "none").stdout)
    result = run("generate", *common, "--drafter", "eagle", "--head", head, "--budget", 9, "--compare")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["text"] == plain["text"]
    assert (record["drafter"], record["head"]) == ("eagle", "tiny-head")
    assert record["compare"]["tokens_agree"] is True


def test_a_head_shares_the_mixed_tree(model: Path, head: Path) -> None:
    common = ("abc abc", "--model", model, "--max-new-tokens", 20, "--json")
    plain = json.loads(run("generate", *common, "--drafter", "none").stdout)
    result = run("generate", *common, "--drafter", "mixed", "--head", head, "--budget", 9)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["text"] == plain["text"]
    assert (record["drafter"], record["head"]) == ("mixed", "tiny-head")


def test_a_head_is_measured(model: Path, head: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"question_id": 1, "category": "qa", "topic": "t", "turns": ["what floats"]}\n')
    options = ("--model", model, "--methods", "plain,tree", "--budgets", "5", "--max-new-tokens", 12)
    result = run("bench", prompts, *options, "--drafter", "eagle", "--head", head)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert record["settings"]["head"] == "tiny-head"
    figures = record["methods"]["tree-5"]["overall"]
    assert (figures["equal"], figures["compared"]) == (1, 1)


def test_a_head_is_measured_in_a_mixed_tree(model: Path, head: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"question_id": 1, "category": "qa", "topic": "t", "turns": ["what floats"]}\n')
    options = ("--model", model, "--methods", "plain,tree:mixed+head", "--budgets", "5", "--max-new-tokens", 12)
    result = run("bench", prompts, *options, "--head", head)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])["methods"]["tree:mixed+head-5"]["overall"]
    assert (figures["equal"], figures["compared"]) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--drafter", "eagle"], "--drafter eagle needs --head FOLDER"),
        (["--drafter", "ngram", "--head", "."], "--drafter ngram takes no head; those that take one are: eagle"),
        (["--drafter", "mixed", "--head", "./nowhere"], "no folder './nowhere' with a head in it"),
        (["--drafter", "eagle", "--head", "./nowhere"], "no folder './nowhere' with a head in it"),
    ],
)
def test_a_head_too_many_or_too_few_is_an_error_before_anything_is_loaded(options: list[str], message: str) -> None:
    result = run("generate", "abc", "--model", "./no-model", *options)
    assert result.exit_code == 2
    assert message in result.stderr
