"""`branchwise compare` on a tiny model, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from branchwise.cli import app
from branchwise.compare.claims import CLAIMS
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core

#: claims that no time decides; the others may fall either way on a busy machine
WITHOUT_TIMES = (
    "inputs", "parallel", "standard_mask", "tree_mask", "siblings", "cache", "reuse", "best_branch", "coupling",
)  # fmt: skip


def test_a_quick_run_writes_page_and_json(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    out, file = tmp_path / "report.html", tmp_path / "report.json"
    arguments = ["compare", "--model", str(model), "--quick", "--dtype", "float32"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out), "--json", str(file)])
    assert result.exit_code == 0, result.output
    record = json.loads(file.read_text())
    assert (record["format"], record["version"]) == ("branchwise-comparison", 1)
    assert [row["key"] for row in record["rows"]] == [claim.key for claim in CLAIMS]
    assert set(record) == {
        "format", "version", "effort", "new_tokens", "seconds", "verdicts", "unexpected", "side_by_side", "rows",
        "provenance",
    }  # fmt: skip
    assert set(record["rows"][0]) == {
        "key", "topic", "said", "expected", "instead", "verdict", "as_expected", "headline", "checks", "how",
        "exhibits", "seconds", "reason", "failed",
    }  # fmt: skip
    by_key = {row["key"]: row for row in record["rows"]}
    assert {key: by_key[key]["verdict"] for key in WITHOUT_TIMES} == {
        claim.key: claim.expected for claim in CLAIMS if claim.key in WITHOUT_TIMES
    }
    assert all(row["reason"] is None and row["how"] and row["checks"] for row in record["rows"])
    assert [side["method"] for side in record["side_by_side"]] == ["plain", "chain", "tree"]
    provenance = record["provenance"]
    assert provenance["model"]["dtype"] == "float32" and provenance["threads"] >= 1 and provenance["date_utc"]
    assert str(tmp_path) not in out.read_text() and str(tmp_path) not in file.read_text()
    assert out.read_text().startswith("<!doctype html>")
    assert "Claims" in result.stdout and "siblings" in result.stdout.lower()


def test_a_place_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", "--model", "./nowhere", "--out", str(tmp_path / "no" / "report.html")])
    assert result.exit_code == 2
    assert "does not exist" in result.output and "nowhere" not in result.output
