"""Streamed text equals the finished text, and never shows what a stop string takes back."""

from __future__ import annotations

import pytest
import torch

from branchwise.show import LiveText
from tiny_folder import character_tokenizer

pytestmark = pytest.mark.core


def stream(text: str, stops: tuple[str, ...], run: int = 1) -> list[str]:
    tokenizer = character_tokenizer()
    ids = tokenizer(text, add_special_tokens=False).input_ids
    pieces: list[str] = []
    live = LiveText(tokenizer, pieces.append, stops)
    live.put(torch.tensor([[1, 2, 3]]))  # the prompt
    for start in range(0, len(ids), run):
        live.put(torch.tensor(ids[start : start + run]))
    live.end()
    return pieces


@pytest.mark.parametrize("run", [1, 2, 5])
def test_pieces_add_up(run: int) -> None:
    assert "".join(stream("hello there", (), run)) == "hello there"
    assert "".join(stream("hello there", ("xyz",), run)) == "hello there"


def test_every_token_shows_at_once_without_stop_strings() -> None:
    assert stream("abc", ()) == ["a", "b", "c"]


def test_as_much_is_held_back_as_a_stop_string_may_need() -> None:
    assert stream("abcdef", ("xyz",)) == ["a", "b", "c", "d", "ef"]


@pytest.mark.parametrize("run", [1, 2, 3, 7])
def test_a_stop_string_and_what_follows_is_not_shown(run: int) -> None:
    assert "".join(stream("one. two. three", (". t", "e."), run)) == "on"
    assert "".join(stream("aaab", ("aab",), run)) == "a"


def test_nothing_shows_when_the_text_begins_with_the_stop_string() -> None:
    assert stream("stop", ("stop",)) == []
