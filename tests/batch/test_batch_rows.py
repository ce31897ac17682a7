"""What a line means, and how a file falls into waves."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.batch.row import RowDefaults, parse_row, row_seed
from branchwise.batch.source import InputFile
from branchwise.serve.schema import ChatRequest, CompletionRequest

DEFAULTS = RowDefaults(seed=5)


def parse(row: object, number: int = 0, defaults: RowDefaults = DEFAULTS):
    return parse_row(row if isinstance(row, bytes | None) else json.dumps(row).encode(), number, defaults)


def test_both_forms_mean_the_same() -> None:
    short = parse({"prompt": "hi", "max_tokens": 3})
    long = parse({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 3}})
    assert short.body == long.body and isinstance(short.body, CompletionRequest)
    assert (short.custom_id, long.custom_id) == ("row-0", "a")
    chat = parse({"body": {"messages": [{"role": "user", "content": "hi"}]}})
    assert isinstance(chat.body, ChatRequest) and chat.body.seed == row_seed(5, 0)


def test_defaults_fill_only_what_a_row_leaves_out() -> None:
    defaults = RowDefaults(seed=1, max_tokens=9, temperature=0.0)
    filled = parse({"prompt": "hi"}, 4, defaults).body
    assert (filled.max_tokens, filled.temperature, filled.seed) == (9, 0.0, row_seed(1, 4))
    own = parse({"prompt": "hi", "max_tokens": 2, "temperature": 0.5, "seed": 3}, 4, defaults).body
    assert (own.max_tokens, own.temperature, own.seed) == (2, 0.5, 3)
    chat = parse({"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2}, 4, defaults).body
    assert (chat.max_tokens, chat.max_completion_tokens) == (None, 2), "the two would exclude each other"


def test_seeds_of_rows_are_all_different() -> None:
    assert len({row_seed(seed, number) for seed in range(4) for number in range(500)}) == 2000


@pytest.mark.parametrize(
    ("row", "status", "said"),
    [
        (b"{nonsense", 400, "no valid JSON"),
        (b"\xff\xfe{}", 400, "no valid JSON"),
        (b"[" * 100_000, 400, "no valid JSON"),
        (b"[1]", 400, "a row is a JSON object, not a list"),
        (None, 413, "--max-row-bytes"),
        ({}, 400, "prompt"),
        ({"prompt": "a", "custom_id": 3}, 400, "custom_id must be a string, got 3"),
        ({"prompt": "a", "stream": True}, 400, "a batch has no streams"),
        ({"prompt": "a", "top_q": 1}, 400, "the field 'top_q' is not supported here"),
        ({"body": {"prompt": "a"}, "prompt": "b"}, 400, "the field 'prompt' is not supported here"),
        ({"body": {"prompt": "a"}, "url": "/v1/embeddings"}, 400, "url must be"),
        ({"body": {"prompt": "a"}, "method": "GET"}, 400, "method must be POST"),
        ({"body": 3}, 400, "body must be an object"),
        ({"prompt": "a", "temperature": 9}, 400, "temperature"),
    ],
)
def test_what_is_wrong_is_said_beside_the_row(row: object, status: int, said: str) -> None:
    parsed = parse(row)
    assert parsed.body is None and parsed.refused.status == status
    assert said in str(parsed.refused)


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"max_tokens": 0}, {"temperature": 3.0}])
def test_defaults_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "-")):
        RowDefaults(**wrong)


def plain_reading(content: bytes, limit: int) -> list[bytes | None]:
    """The whole file in memory: every line that is not blank, None for those longer than the limit."""
    lines = io.BytesIO(content).readlines()
    return [None if len(line.removesuffix(b"\n")) > limit else line for line in lines if line.strip()]


@settings(deadline=None, max_examples=200)
@given(
    content=st.builds(
        lambda lines, end: b"".join(line + b"\n" for line in lines) + end,
        st.lists(st.sampled_from([b"", b"  ", b"a", b"bc", b"d" * 7, b"e" * 8, b"f" * 9, b"g" * 30])),
        st.sampled_from([b"", b"h", b"i" * 8, b"j" * 9, b"k" * 40]),
    ),
    wave_rows=st.integers(1, 4),
)
def test_waves_hold_every_row_once(content: bytes, wave_rows: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("waves") / "in.jsonl"
    path.write_bytes(content)
    expected = plain_reading(content, 8)
    if not expected:
        with pytest.raises(ValueError, match="has no rows"):
            InputFile.read(path, wave_rows, 8)
        return
    source = InputFile.read(path, wave_rows, 8)
    found = [pair for wave in source.waves for pair in source.lines(wave)]
    assert [number for number, _ in found] == list(range(len(expected))) and source.rows == len(expected)
    assert [line for _, line in found] == expected
    assert all(wave.rows == wave_rows for wave in source.waves[:-1])


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    source = InputFile.read(path, 1, 100)
    path.write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
    assert [number for number, _ in source.lines(source.waves[0])] == [0]
    with pytest.raises(ValueError, match="has changed while it was read"):
        list(source.lines(source.waves[1]))


def test_a_number_out_of_range_is_refused(tmp_path: Path) -> None:
    for options in ((0, 10), (3, 0)):
        with pytest.raises(ValueError, match="must be >= 1, got 0"):
            InputFile.read(tmp_path, *options)
