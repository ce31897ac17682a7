"""The losslessness table on the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from branchwise.cli import app

pytestmark = pytest.mark.core


def _run(*arguments: str):
    return CliRunner().invoke(app, ["verify-lossless", *arguments])


def test_one_rule_on_one_kind_of_draft():
    result = _run("match", "--drafter", "deterministic")
    assert result.exit_code == 0, result.output
    rows = result.output.splitlines()[1:]
    assert rows
    assert all(row.startswith("match") and row.endswith("lossless") for row in rows)


def test_the_table_lists_rules_and_negative_controls():
    result = _run()
    assert result.exit_code == 0, result.output
    assert "traversal" in result.output
    assert result.output.count(" biased") == 13
    assert "FAILED" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no rule is called 'nonsense'"),
        (["match", "--draft", "drawn"], "no kind of draft is called 'drawn'"),
        (["--draft", "deterministic"], "goes with a rule"),
        (["match", "--full"], "leave the rule out"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(arguments, message):
    result = _run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
