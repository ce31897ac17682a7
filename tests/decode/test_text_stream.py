"""Pieces of text: certain, in order, and adding up to the decoded output."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.decode.text import TextStream
from tiny_tokenizers import SPECIAL, byte_tokenizer, metaspace_tokenizer, word_tokenizer

pytestmark = pytest.mark.core

#: tokens of several bytes: whole characters, halves of characters, a character and half of the next, spaces
MERGED = tuple(
    piece
    for text in ("the", " cat", "é", "日本", "👍🏽", " ")
    for piece in (text.encode(), text.encode()[:-1], text.encode()[1:], text.encode()[-1:] + b"a")
    if len(piece) > 1
)
BYTES = byte_tokenizer(MERGED)
PIECES = ("<unk>", "▁", "▁▁", "a", "b", "▁a", "▁the", "é", "▁日本", "\n", ".", "▁▁▁x")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
TEXTS = ("", "a", "hello world", "é", "日本語 text", "👍🏽 and 🏳️‍🌈", "a b  c\n\nd", "� really", "\u200b\u2028")

settings.register_profile("text", max_examples=150, deadline=None, derandomize=True)
settings.load_profile("text")


def pieces_of(tokenizer, tokens, **options) -> list[str]:
    stream = TextStream(tokenizer, **options)
    pieces = []
    for token in tokens:
        pieces.append(stream.push(token))
        assert stream.text == "".join(pieces)
    pieces.append(stream.flush())
    assert stream.text == stream.text_with_rest() == "".join(pieces)
    return pieces


def decoded(tokenizer, tokens, skip_special_tokens=True) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)


def special(tokenizer, name: str) -> int:
    return tokenizer.convert_tokens_to_ids(name)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_one_by_one_come_out_as_whole_characters(text):
    pieces = pieces_of(BYTES, list(text.encode()))
    assert "".join(pieces) == text
    if "�" not in text:
        assert all("�" not in piece for piece in pieces), "half a character was shown"
    assert [piece for piece in pieces if piece] == list(text) or "�" in text


@given(st.lists(st.integers(0, 255 + len(MERGED)), max_size=30))
def test_pieces_of_any_bytes_add_up_to_the_decoded_text(tokens):
    """Most of these are no valid UTF-8 at all."""
    assert "".join(pieces_of(BYTES, tokens)) == decoded(BYTES, tokens)


@given(st.text(max_size=20), st.data())
def test_a_text_cut_anywhere_between_bytes_comes_back(text, data):
    """Every text over every cut into the tokens there are."""
    left, tokens = text.encode(), []
    while left:
        fitting = [256 + i for i, piece in enumerate(MERGED) if left.startswith(piece)]
        token = data.draw(st.sampled_from([left[0], *fitting]))
        tokens.append(token)
        left = left[len(MERGED[token - 256]) if token > 255 else 1 :]
    pieces = pieces_of(BYTES, tokens)
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces) or "�" in text


@pytest.mark.parametrize("make", [word_tokenizer, metaspace_tokenizer])
@given(data=st.data())
def test_tokenizers_that_drop_the_first_space(make, data):
    tokenizer = make(PIECES)
    tokens = data.draw(st.lists(st.sampled_from([*range(len(PIECES)), *tokenizer.all_special_ids]), max_size=20))
    assert "".join(pieces_of(tokenizer, tokens)) == decoded(tokenizer, tokens)


@given(st.lists(st.one_of(st.integers(0, len(PIECES) - 1), st.text(min_size=1, max_size=3)), max_size=12))
def test_byte_tokens_between_word_tokens(parts):
    """Llama spells what it has no piece for in single bytes, whole characters at a time."""
    tokenizer = word_tokenizer(PIECES + BYTE_PIECES)
    tokens = []
    for part in parts:
        tokens += [part] if isinstance(part, int) else [len(PIECES) + byte for byte in part.encode()]
    pieces = pieces_of(tokenizer, tokens)
    assert "".join(pieces) == decoded(tokenizer, tokens)


def test_broken_bytes_do_not_hold_back_what_follows_them():
    """Llama's decoder takes a whole run of byte tokens back when its end is broken; the rest must still flow."""
    tokenizer = word_tokenizer(PIECES + BYTE_PIECES)
    e_acute, broken = [len(PIECES) + byte for byte in "é".encode()], len(PIECES) + 0xE2
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in [3, *e_acute, broken, *([4] * 5)]]
    assert pieces[:3] == ["a", "", "é"]
    assert pieces[-1] == "b", "the stream is stuck"
    assert stream.text_with_rest() == stream.text


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_skipped_or_shown(skip):
    start, end = special(BYTES, SPECIAL[0]), special(BYTES, SPECIAL[1])
    tokens = [start, *b"ab", end, *b"c", end, end]
    assert "".join(pieces_of(BYTES, tokens, skip_special_tokens=skip)) == decoded(BYTES, tokens, skip)
    assert decoded(BYTES, tokens, skip) == ("abc" if skip else "<s>ab</s>c</s></s>")


def test_an_unfinished_character_is_given_out_by_flush_and_seen_before_it():
    stream = TextStream(BYTES)
    assert [stream.push(byte) for byte in b"a\xe6\x97"] == ["a", "", ""]
    assert (stream.text, stream.text_with_rest()) == ("a", "a�")
    assert stream.flush() == "�"
    assert stream.flush() == ""


def test_a_long_text_is_not_decoded_again_and_again(monkeypatch):
    lengths = []
    decode = type(BYTES).decode

    def counted(self, tokens, **options):
        lengths.append(len(tokens))
        return decode(self, tokens, **options)

    monkeypatch.setattr(type(BYTES), "decode", counted)
    stream = TextStream(BYTES)
    for byte in "日本語 text ".encode() * 20:
        stream.push(byte)
        stream.text_with_rest()
    assert max(lengths) <= 8
