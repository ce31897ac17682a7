"""The command line's grammars and log-probabilities, run in-process on a tiny random model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from branchwise.cli import app
from tiny_folder import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("grammar"))


def generate(model: Path, *arguments: object) -> Result:
    options = ("--model", model, "--dtype", "float64", "--threads", 1, "--max-new-tokens", 24)
    return CliRunner().invoke(app, ["generate", "hello", *map(str, (*arguments, *options))])


def record_of(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (("--regex", "[a-c]{2,5}!"), "[a-c]{2,5}!"),
        (("--ebnf", 'root ::= "x" root "y" | ":"'), "x*:y*"),
        (("--json-schema", '{"type": "integer", "minimum": 10, "maximum": 99}'), "[1-9][0-9]"),
    ],
)
def test_the_text_keeps_to_the_grammar(model: Path, options: tuple[str, ...], pattern: str) -> None:
    record = record_of(generate(model, *options, "--json", "--compare"))
    # a right-nested text may run out of tokens before it ends
    assert re.fullmatch(pattern, record["text"]) or record["finish_reason"] == "length"
    assert record["compare"]["tokens_agree"] is True
    assert generate(model, *options).stdout == record["text"] + "\n"


def test_grammars_from_files(model: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"enum": [12, 15]}', encoding="utf-8")
    assert record_of(generate(model, "--json-schema", tmp_path / "schema.json", "--json"))["text"] in ("12", "15")
    (tmp_path / "grammar").write_text('root ::= "ab"', encoding="utf-8")
    assert record_of(generate(model, "--ebnf", tmp_path / "grammar", "--json"))["text"] == "ab"


def test_logprobs_are_in_the_object(model: Path) -> None:
    record = record_of(generate(model, "--json", "--logprobs", 3))
    assert [entry["token_id"] for entry in record["logprobs"]] == record["token_ids"]
    for entry in record["logprobs"]:
        assert entry["top"][0] == [entry["token_id"], pytest.approx(entry["logprob"])], "greedy: the best token"
        assert len(entry["top"]) == 3
    assert record_of(generate(model, "--json", "--logprobs", 0))["logprobs"][0]["top"] == []
    assert "logprobs" not in record_of(generate(model, "--json"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--regex", "a", "--ebnf", 'root ::= "a"'), "--regex and --ebnf are two grammars; give one"),
        (("--regex", "a("), "the regular expression cannot be used as a grammar"),
        (("--json-schema", "nowhere.json"), "there is no file 'nowhere.json', and it is no JSON schema itself"),
        (("--json-schema", "{nowhere"), "the JSON schema '{nowhere' is no JSON"),
        (("--ebnf", "nowhere.gbnf"), "there is no file 'nowhere.gbnf', and it is no grammar itself"),
        (("--json-schema", '{"type": "object"}'), "no token of the vocabulary can begin a text of it"),
        (("--logprobs", "2"), "add --json"),
        (("--logprobs", "-1", "--json"), "logprobs must be a whole number from 0"),
    ],
)
def test_bad_input_is_one_line(model: Path, options: tuple[str, ...], says: str) -> None:
    result = generate(model, *options)
    assert result.exit_code == 2, result.output
    assert says in result.stderr and result.stderr.count("\n") == 1
