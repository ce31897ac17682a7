"""Every script in examples/ runs, on a tiny model; what it prints says that it did what it is for."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from branchwise.train.draft_vocabulary import DraftVocabulary
from branchwise.train.eagle3 import Eagle3Method, Eagle3Options
from serve_rig import serving
from tiny_folder import save_tiny_model

SCRIPTS = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def run(name: str, capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """The lines that a script prints."""
    before = sys.argv
    sys.argv = [name, *map(str, arguments)]
    try:
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    finally:
        sys.argv = before
    return capsys.readouterr().out.splitlines()


def test_no_script_is_forgotten() -> None:
    told = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    tested = Path(__file__).read_text(encoding="utf-8")
    for script in SCRIPTS.glob("*.py"):
        assert f"`{script.name}`" in told and f'"{script.name}"' in tested, script.name


def test_generate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, rate, trees, faster = run("generate.py", capsys, folder)
    assert plain.removeprefix("plain: ") == trees.removeprefix("trees: ")
    assert rate.strip().startswith("1.00 tokens per step") and float(faster.split()[0]) >= 1


@pytest.mark.parametrize("name", ["stream.py", "existing_code.py", "own_processor.py"])
def test_a_text_comes_out(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len("".join(run(name, capsys, folder))) > 20


def test_batch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("batch.py", capsys, folder)
    assert len(lines) == 3 and all("tokens per step" in line for line in lines)


def test_sampling(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [line.partition(": ")[2] for line in run("sampling.py", capsys, folder)]
    assert len(texts) == 3 and len(set(texts)) == 1


def test_own_drafter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nodes drafted" in run("own_drafter.py", capsys, folder)[-1]


def test_own_rule(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof, text = run("own_rule.py", capsys, folder)
    assert proof.startswith("distance from the target's law: 0, ")
    assert text.rpartition(" tokens in the longest step")[0][-1] in "123"


def test_grammar(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "json", more='{}":,')
    (line,) = run("grammar.py", capsys, folder)
    assert line.startswith("{'city': ") and "'large': " in line


def test_small_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model as its own draft model guesses everything right."""
    assert float(run("small_model.py", capsys, folder, folder)[-1].split()[0]) > 2


def test_head_from_disk(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    size = model.config.vocab_size
    vocabulary = DraftVocabulary(torch.arange(size).numpy(), size, 1.0, 1.0)
    Eagle3Method(model, vocabulary, Eagle3Options()).export(tmp_path / "head")
    assert run("head_from_disk.py", capsys, folder, tmp_path / "head")[-1].endswith("tokens per step")
    with pytest.raises(SystemExit, match="usage"):
        run("head_from_disk.py", capsys)


def test_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("engine.py", capsys, folder)
    assert len(lines) == 3 and all(line.endswith(("(length)", "(stop)")) for line in lines)


def test_server_client(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        lines = run("server_client.py", capsys, server.url)
    assert any(line.endswith(" tokens") for line in lines[1:-1])
