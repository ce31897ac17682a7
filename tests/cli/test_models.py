"""`branchwise models`, with an empty cache folder and no network."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import branchwise.hub
from branchwise.cli import app

pytestmark = pytest.mark.core


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The rooms below are asked with another cache folder."""
    list_models = branchwise.hub.list_models
    monkeypatch.setattr(branchwise.hub, "list_models", lambda: list_models(cache_dir=tmp_path))
    return tmp_path


def test_list_names_every_model_and_its_state(empty_cache: Path) -> None:
    result = CliRunner().invoke(app, ["models", "list"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == len(branchwise.hub.NAMED_MODELS)
    assert lines[0].startswith("smollm2-135m-instruct, default: ")
    assert all("to download" in line for line in lines)


def test_path_of_an_absent_model_says_how_to_get_it(empty_cache: Path) -> None:
    result = CliRunner().invoke(app, ["models", "path", "default"])
    assert result.exit_code == 2
    assert result.stderr == (
        "branchwise: smollm2-135m-instruct is not fetched; run: branchwise models fetch smollm2-135m-instruct\n"
    )


@pytest.mark.parametrize("command", ["path", "fetch"])
def test_an_unknown_name_lists_the_known(empty_cache: Path, command: str) -> None:
    result = CliRunner().invoke(app, ["models", command, "smollm"])
    assert result.exit_code == 2
    assert "no model is registered as 'smollm'" in result.stderr
    assert "default" in result.stderr
    assert result.stderr.count("\n") == 1


def test_fetch_prints_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(branchwise.hub, "fetch", lambda name: tmp_path / name)
    result = CliRunner().invoke(app, ["models", "fetch", "default"])
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'default'}\n"
