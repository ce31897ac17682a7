"""The command line on the real default model."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from branchwise.cli import app

pytestmark = pytest.mark.model

PROMPT = "Repeat this sentence three times: the quick brown fox jumps over the lazy dog."


def test_a_chat_in_float32_agrees_with_plain_decoding_or_parts_at_a_near_tie() -> None:
    options = ("--dtype", "float32", "--max-new-tokens", "48", "--budget", "17", "--compare", "--json")
    result = CliRunner().invoke(app, ["generate", PROMPT, *options])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["text"].strip()
    assert record["tokens_per_step"] > 1.5, "a prompt that asks for repetition"
    compared = record["compare"]
    assert compared["tokens_agree"] or compared["difference"]["near_tie"]


def test_the_raw_prompt_goes_on() -> None:
    options = ("--raw", "--max-new-tokens", "8", "--stop", ".")
    result = CliRunner().invoke(app, ["generate", "The capital of France is", *options])
    assert result.exit_code == 0, result.output
    assert "Paris" in result.stdout
