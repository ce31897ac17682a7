"""--draft-model and --draft-tree, in-process on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bpe_tokenizers import byte_level_bpe
from branchwise.cli import app
from tiny_folder import save_tiny_model
from zoo import tiny_llama

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with another tokenizer."""
    folder = tmp_path_factory.mktemp("stranger")
    tokenizer = byte_level_bpe(400)
    tiny_llama(seed=3, vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def generate(model: Path, *more: object) -> Result:
    fixed = ("--model", model, "--dtype", "float64", "--max-new-tokens", 16, "--threads", 1, "--json")
    return run("generate", "hello there", *fixed, *more)


def record(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("tree", [None, "chain", "best_first", "sampled"])
@pytest.mark.parametrize("drafter", ["model", "mixed", "auto"])
def test_the_text_is_the_same_with_a_draft_model(target: Path, drafter: str, tree: str | None) -> None:
    plain = record(generate(target, "--drafter", "none"))
    more = () if tree is None else ("--draft-tree", tree)
    drafted = record(generate(target, "--drafter", drafter, "--draft-model", target, "--budget", 9, *more))
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["draft_model"] == target.name and "draft_model" not in plain
    assert drafted["tokens_per_step"] > (2 if drafter == "model" else 1), "it drafts for itself"


def test_a_stranger_drafts_through_text(target: Path, stranger: Path) -> None:
    plain = record(generate(target, "--drafter", "none"))
    drafted = record(generate(target, "--drafter", "model", "--draft-model", stranger, "--budget", 9, "--compare"))
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["compare"]["tokens_agree"] is True


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--drafter", "model"), "needs a small model"),
        (("--drafter", "ngram", "--draft-model", "default"), "'ngram' takes no draft model"),
        (("--draft-tree", "sampled"), "'best_first' or 'chain' without a draft model"),
        (("--draft-model", "default", "--draft-tree", "bush"), "no kind of tree is called 'bush'"),
        (("--draft-model", "./nowhere"), "no folder './nowhere'"),
    ],
)
def test_bad_input_is_one_line(target: Path, more: tuple[str, ...], says: str) -> None:
    result = generate(target, *more)
    assert result.exit_code == 2
    assert says in result.stderr and result.stderr.count("\n") == 1


def test_a_bench_of_several_drafters(target: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.json"
    row = {"question_id": 1, "category": "qa", "topic": "t", "turns": ["abc abc abc"]}
    prompts.write_text(json.dumps(row) + "\n", encoding="utf-8")
    methods = "plain,tree,tree:ngram+chain,tree:model+chain,tree:model+sampled,tree:mixed+model+best_first"
    fixed = ("--model", target, "--dtype", "float64", "--max-new-tokens", 12, "--threads", 1, "--budgets", "5")
    result = run("bench", prompts, "--methods", methods, "--draft-model", target, "--json", out, *fixed)
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    assert list(last["methods"]) == [name if name == "plain" else f"{name}-5" for name in methods.split(",")]
    for name, figures in last["methods"].items():
        assert figures["error"] is None
        if name != "plain":
            assert (figures["overall"]["equal"], figures["overall"]["compared"]) == (1, 1), name
    assert last["provenance"]["draft_model"]["name"] == target.name
    assert last["methods"]["tree:model+chain-5"]["overall"]["tokens_per_step"] > 2
    for rule in ("auto", "traversal"):
        more = ("--methods", "plain,tree:model+sampled", "--draft-model", target, "--temperature", 0.7, "--rule", rule)
        sampled = json.loads(run("bench", prompts, *more, *fixed).stdout.splitlines()[-1])
        figures = sampled["methods"]["tree:model+sampled-5"]["overall"]
        # traversal promises the law of the text, not the tokens of plain decoding
        assert figures.get("equal") == (1 if rule == "auto" else None)
        assert figures["tokens_per_step"] > 1 and sampled["settings"]["rule"] == rule


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--methods", "tree:model"), "needs a small model"),
        (("--methods", "tree:mixed+model"), "needs --draft-model"),
        (("--methods", "tree:mixed", "--draft-model", "default"), "no method drafts with --draft-model"),
        (("--methods", "tree:ngram+sampled"), "without a draft model, got 'sampled'"),
        (("--methods", "tree:ngram+chain+best_first"), "names 2 kinds of tree"),
        (("--methods", "tree:psychic"), "no drafter is named 'psychic'"),
        (("--methods", "tree", "--rule", "mood"), "no rule is called 'mood'"),
    ],
)
def test_bad_methods_are_one_line(target: Path, tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"question_id": 1, "category": "qa", "topic": "t", "turns": ["a"]}), encoding="utf-8")
    result = run("bench", prompts, "--model", target, *more)
    assert result.exit_code == 2
    assert says in result.stderr and result.stderr.count("\n") == 1
