"""`branchwise tune` in-process on a tiny random model: tables, the kept curve, JSON, picture, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from branchwise import Speculator, hub
from branchwise.cli import app
from branchwise.tune.cost_table import CostTable
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("raw"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tune(model: Path, *arguments: object) -> Result:
    short = ("--contexts", "8,32", "--nodes", "1,2,8", "--repeats", 1, "--dtype", "float32", "--threads", 1)
    return CliRunner().invoke(app, ["tune", *map(str, ("--model", model, *short, *arguments))])


def test_tables_and_a_curve_that_the_next_speculator_begins_with(model: Path, cache: Path) -> None:
    result = tune(model)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "milliseconds of a forward:"
    assert lines[1].split() == ["nodes", "context", "8", "context", "32"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "8"]
    assert "multiples of one token:" in lines and "kept for budget auto" in lines
    assert any(line.split()[:2] == ["0.9", "32"] for line in lines), "the choice for nine right candidates of ten"
    (file,) = (cache / "cost_curves").iterdir()
    table = CostTable.from_dict(json.loads(file.read_text()))
    assert table.contexts == (8, 32) and table.columns[0].nodes == (1, 2, 8)
    loaded, _ = hub.load(str(model), dtype="float32")
    assert Speculator(loaded).budget.curve.table == table
    assert Speculator(loaded.double()).budget.curve.table is None, "another number type has another curve"


def test_json_and_picture(model: Path, tmp_path: Path) -> None:
    # pictures are drawn with matplotlib, an extra
    pytest.importorskip("matplotlib", reason="the picture needs the extra plot")
    result = tune(model, "--json", tmp_path / "out.json", "--plot", tmp_path / "curve.png")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out.json").read_text())
    assert CostTable.from_dict(record["table"]).contexts == (8, 32)
    assert record["table"]["key"]["engine"] == "transformers"
    assert {choice["level"] for choice in record["choices"]} == {0.3, 0.5, 0.7, 0.9}
    assert all(choice["speedup"] >= 1.0 and choice["nodes"] >= 1 for choice in record["choices"])
    assert record["provenance"]["threads"] == 1
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_contexts_that_the_model_does_not_have_are_left_out_and_said_so(model: Path) -> None:
    result = tune(model, "--contexts", "8,9000000")
    assert result.exit_code == 0, result.output
    assert "contexts [9000000] are more than this model has" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--contexts", "9000000"), "no context of [9000000] fits"),
        (("--contexts", "8,x"), "--contexts must be whole numbers >= 1 with commas between, got 'x'"),
        (("--nodes", "0"), "--nodes must be whole numbers >= 1 with commas between, got '0'"),
        (("--nodes", ","), "--nodes is empty"),
        (("--repeats", "0"), "repeats must be >= 1, got 0"),
        (("--threads", "0"), "threads must be >= 1, got 0"),
        (("--json", "/no/such/folder/x.json"), "does not exist"),
        (("--plot", "/no/such/folder/x.png"), "does not exist"),
        (("--model", "./nowhere"), "no folder './nowhere'"),
    ],
)
def test_refused_in_one_line(model: Path, arguments: tuple[str, ...], message: str) -> None:
    result = tune(model, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("branchwise: ") and result.stderr.count("\n") == 1
    assert message in result.stderr


def test_a_cache_that_cannot_be_written_is_said_and_no_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "file"))
    result = tune(model)
    assert result.exit_code == 0, result.output
    assert "not kept: nothing can be written to the cache folder" in result.stdout
