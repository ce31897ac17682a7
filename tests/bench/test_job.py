"""`branchwise bench` on a tiny model, from the file of prompts to the last line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from branchwise.bench.methods import TransformersMethod
from branchwise.cli import app
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("chat"), chat=True, do_sample=True, temperature=0.7, top_k=5)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    texts = ["what floats", "abc abc abc abc", "tell a story, a long one"]
    rows = [
        {"question_id": i, "category": "qa" if i < 2 else "story", "topic": "t", "turns": [t]}
        for i, t in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def bench(prompts: Path, model: Path, *more: object) -> Result:
    fixed = ("--model", model, "--dtype", "float64", "--max-new-tokens", 20, "--threads", 1)
    return CliRunner().invoke(app, ["bench", *map(str, (prompts, *fixed, *more))])


def test_a_whole_run(prompts: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = bench(prompts, model, "--methods", "plain,tree,hf-plain,hf-lookup", "--budgets", "3,9", "--json", out)
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    whole = json.loads(out.read_text(encoding="utf-8"))
    names = ["plain", "tree-3", "tree-9", "hf-plain", "hf-lookup"]
    assert list(last["methods"]) == names
    assert len(whole["rows"]) == 3 * len(names)
    assert {key: value for key, value in whole.items() if key != "rows"} == last
    for name in names:
        figures = last["methods"][name]["overall"]
        assert last["methods"][name]["error"] is None
        assert figures["prompts"] == 3
        # float64: every method writes the same tokens
        assert (figures["equal"], figures["compared"]) == (3, 3)
        assert set(last["methods"][name]["categories"]) == {"qa", "story"}
        assert figures["ratio_to_hf-plain"] > 0
    assert last["methods"]["plain"]["overall"]["tokens_per_step"] == 1.0
    assert last["methods"]["hf-plain"]["overall"]["tokens_per_step"] == 1.0
    tree = last["methods"]["tree-9"]["overall"]
    parts = [tree[f"share_{part}"] for part in ("draft", "verify", "commit", "other")]
    assert sum(parts) == pytest.approx(tree["outside_share"], abs=1e-3)
    assert all(part >= 0 for part in parts)
    assert last["methods"]["plain"]["acceptance"] == {"depth": [], "rank": []}
    ranks = last["methods"]["tree-9"]["acceptance"]["rank"]
    assert sum(rank["accepted"] for rank in ranks) == sum(
        depth["accepted"] for depth in last["methods"]["tree-9"]["acceptance"]["depth"]
    )
    # the first method changes from prompt to prompt
    firsts = [row["method"] for row in whole["rows"] if row["place"] == 0]
    assert firsts == names[:3]


def test_a_picture(prompts: Path, model: Path, tmp_path: Path) -> None:
    # pictures are drawn with matplotlib, an extra
    pytest.importorskip("matplotlib", reason="pictures need the extra plot")
    result = bench(prompts, model, "--methods", "plain,tree,hf-plain", "--budgets", "3,9", "--plot", tmp_path / "p.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    refused = bench(prompts, model, "--plot", tmp_path / "nowhere" / "p.png")
    assert refused.exit_code == 2 and "nowhere" in refused.stderr


def test_provenance_says_what_ran_and_nothing_about_where(prompts: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    bench(prompts, model, "--methods", "plain", "--limit-per-category", 1, "--json", out)
    text = out.read_text(encoding="utf-8")
    facts = json.loads(text)["provenance"]
    assert facts["threads"] == 1
    assert {"python", "torch", "transformers", "branchwise"} <= set(facts["versions"])
    assert facts["model"]["name"] == model.name and len(facts["model"]["weights_sha256"]) == 64
    assert facts["model"]["dtype"] == "float64"
    assert facts["date_utc"].endswith("+00:00")
    assert str(model.parent) not in text and str(prompts.parent) not in text
    assert os.uname().nodename not in text or len(os.uname().nodename) < 4


def test_a_failing_method_is_in_the_table_and_the_exit_code(
    prompts: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: TransformersMethod, *_: object) -> None:
        raise RuntimeError("no lookup today")

    monkeypatch.setattr(TransformersMethod, "run", fails)
    result = bench(prompts, model, "--methods", "plain,hf-lookup", "--limit-per-category", 1)
    assert result.exit_code == 1
    assert "hf-lookup (FAILED)" in result.stdout
    assert "hf-lookup failed: RuntimeError: no lookup today" in result.stdout
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["methods"]["hf-lookup"]["error"] == "RuntimeError: no lookup today"
    assert last["methods"]["plain"]["overall"]["prompts"] == 2


def test_sampling_agrees_within_this_library(prompts: Path, model: Path) -> None:
    result = bench(prompts, model, "--methods", "plain,tree,hf-plain", "--budgets", "5", "--temperature", 0.8)
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["methods"]["tree-5"]["overall"]["equal"] == 3
    assert "equal" not in last["methods"]["hf-plain"]["overall"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--methods", "fast"), "no method is named 'fast'"),
        (("--methods", ""), "name at least one method"),
        (("--budgets", "0"), "must be >= 1"),
        (("--drafter", "psychic"), "no drafter is named 'psychic'"),
        (("--categories", "poetry"), "no prompt has the category 'poetry'; there are qa, story"),
        (("--json", "/no/such/folder/x.json"), "does not exist"),
        (("--temperature", "-1"), "temperature must be >= 0"),
        (("--max-new-tokens", "1"), "max-new-tokens must be >= 2"),
        (("--lookup-tokens", "0"), "lookup-tokens must be >= 1"),
    ],
)
def test_bad_input(prompts: Path, model: Path, more: tuple[str, ...], says: str) -> None:
    result = bench(prompts, model, *more)
    assert result.exit_code == 2
    assert says in result.stderr and result.stderr.count("\n") == 1
