"""Labels: what a token is must be seen, whatever it holds."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe_tokenizers import byte_level_bpe, spaced_bpe
from branchwise.show.token_text import TokenLabels, cells, shortened, visible

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (" cat", "·cat"),
        ("\n", "↵"),
        ("\t\r\n", "⇥␍↵"),
        ("\n        return", "↵·\N{MULTIPLICATION SIGN}8return"),
        ("\x00\x1b\x7f", "\\x00\\x1b\\x7f"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\u200b\ufeff\u2028", "\\u200b\\ufeff\\u2028"),
        ("\u00a0", "\\xa0"),
        ("שלום", "שלום"),
        ("日本", "日本"),
        ("e\u0301", "e\u0301"),
        ("<b>&\"'", "<b>&\"'"),
    ],
)
def test_by_hand(text: str, label: str) -> None:
    assert visible(text) == label


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=12))
def test_a_label_is_one_line_of_characters_that_can_be_seen(text: str) -> None:
    for character in visible(text):
        assert unicodedata.category(character)[0] not in "CZ", f"{character!r} of {text!r}"


def test_bytes_that_are_no_whole_character_are_written_out() -> None:
    tokenizer = byte_level_bpe(300)
    labels = TokenLabels(tokenizer)
    ids = tokenizer("ß", add_special_tokens=False).input_ids
    assert "".join(map(labels, ids)) in ("ß", "\\xc3\\x9f")
    alone = tokenizer.convert_tokens_to_ids("Ã")  # how byte-level vocabularies write the byte C3
    assert labels(alone) == "\\xc3"


def test_byte_fallback_and_the_space_in_front_of_a_word() -> None:
    tokenizer = spaced_bpe(400)
    labels = TokenLabels(tokenizer)
    assert labels(tokenizer.convert_tokens_to_ids("<0xE2>")) == "\\xe2"
    for word, number in tokenizer.get_vocab().items():
        if word.startswith("▁") and word.isprintable() and "▁▁▁" not in word:
            assert labels(number) == word.replace("▁", "·")


def test_ids_without_a_tokenizer_and_a_sign_for_nothing() -> None:
    class Silent:
        def decode(self, ids: list[int], **_: object) -> str:
            return ""

        def convert_ids_to_tokens(self, token: int) -> None:
            return None

    assert TokenLabels()(17) == "17"
    assert TokenLabels(Silent())(17) == "∅"


def test_widths_and_cuts() -> None:
    assert cells("abc") == 3 and cells("日本") == 4 and cells("e\u0301") == 1
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
    assert shortened("日本語日本語", 6) == "日本…"
