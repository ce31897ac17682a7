"""`branchwise show` in-process on a tiny random model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from branchwise.cli import app
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core
NEW = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def run(command: str, model: Path, *arguments: object) -> Result:
    options = ("--model", model, "--dtype", "float64", "--threads", 1, "--drafter", "mixed")
    return CliRunner().invoke(app, [command, *map(str, (*arguments, *options))])


def show(model: Path, *arguments: object) -> Result:
    return run("show", model, "ababab", "--max-new-tokens", NEW, "--budget", 9, *arguments)


def data_of(page: Path) -> dict:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_page_of_what_generate_writes(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = show(model, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    data = data_of(out)
    plain = run("generate", model, "ababab", "--max-new-tokens", NEW, "--json", "--budget", 1)
    shown = "".join("".join(step["pieces"]) for step in data["steps"])
    assert shown.replace("<unk>", "") == json.loads(plain.stdout)["text"], "the page shows special tokens, too"
    assert data["budget"] == 9 and ["drafter", "mixed"] in data["facts"]
    assert data["prompt"] == "ababab"
    drafted = [step for step in data["steps"] if len(step["parents"]) > 1]
    assert drafted and all(len(step["target"]) == len(step["parents"]) - 1 for step in drafted)


def test_one_step_as_a_picture(model: Path, tmp_path: Path) -> None:
    result = show(model, "--out", tmp_path / "step.svg", "--step", 2)
    assert result.exit_code == 0, result.output
    svg = (tmp_path / "step.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(svg)
    assert ">Step 2 of " in svg
    # pictures are drawn with matplotlib, an extra
    pytest.importorskip("matplotlib", reason="the picture needs the extra plot")
    assert show(model, "--out", tmp_path / "step.png").exit_code == 0
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_file_the_page_is_a_temporary_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from branchwise.show import display

    monkeypatch.setattr(display.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(display.webbrowser, "open", lambda address: False)
    result = show(model)
    assert result.exit_code == 0, result.output
    assert data_of(Path(result.stdout.strip()))["steps"]


def test_the_terminal(model: Path) -> None:
    every = show(model, "--text")
    assert every.exit_code == 0 and every.stdout.startswith("step 1: ")
    assert "tokens per step" in every.stderr
    second = show(model, "--text", "--step", 2)
    assert second.stdout.startswith("step 2: ") and second.stdout.count("step ") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "page.pdf"), "--out writes .html, .svg, .png, got 'page.pdf'"),
        (("--out", "no/such/folder/page.html"), "there is no folder"),
        (("--step", 0), "--step counts from 1, got 0"),
        (("--step", 99), "there is no step 99: the generation took"),
        (("--max-new-tokens", 0), "max-new-tokens must be >= 1, got 0"),
        (("--budget", 0), "budget"),
        (("--drafter", "nobody"), "nobody"),
        (("--top-k", 3), "top-k has no effect on greedy decoding"),
        (("--exit-layer", 1), "--exit-layer goes with --drafter early_exit"),
        (("--tree", "tree.json"), "--tree goes with --drafter static"),
    ],
)
def test_what_cannot_be_is_said(model: Path, arguments: tuple, message: str) -> None:
    result = CliRunner().invoke(app, ["show", "ab", "--model", str(model), *map(str, arguments)])
    assert result.exit_code == 2 and message in result.stderr.splitlines()[-1]


def test_an_empty_prompt() -> None:
    result = CliRunner().invoke(app, ["show", ""])
    assert result.exit_code == 2 and "the prompt is empty" in result.stderr
