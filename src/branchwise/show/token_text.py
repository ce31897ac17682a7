"""Tokens as a reader can tell them apart: spaces, line breaks, control characters and lone bytes made visible.

Knows a tokenizer and Unicode. Does not escape for HTML: that is done where a label meets markup.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
#: how vocabularies of SentencePiece's kind write a space
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_SIGNS = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
#: from so many equal signs of white space on, a label counts them
_LONG_RUN = re.compile(r"([·↵⇥])\1{3,}")


class TokenLabels:
    r"""Labels of tokens, each worked out once.

    A label is one line without control characters; ``·`` is a space, ``↵`` a line break, ``·×8`` eight spaces. What
    has no picture of its own is written as ``\xHH`` or ``\uHHHH``, bytes that are no whole character as well.

    Args:
        tokenizer: decodes ids; without one a label is the id.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer
        self._labels: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        label = self._labels.get(token)
        if label is None:
            label = self._labels[token] = self._label(token)
        return label

    def _label(self, token: int) -> str:
        if self._tokenizer is None:
            return str(token)
        text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        word = self._tokenizer.convert_ids_to_tokens(token)
        if _UNFINISHED in text:
            raw = _bytes_of(word)
            if raw is not None:
                text = raw.decode("utf-8", errors="backslashreplace")
        elif word is not None and word.replace(_SPACE, " ").endswith(text):
            text = word.replace(_SPACE, " ")  # what stands alone is decoded as the first of a text, without its space
        return visible(text) or "∅"


def visible(text: str) -> str:
    """``text`` on one line, with everything that has no picture of its own written out."""
    return _LONG_RUN.sub(lambda run: f"{run[1]}\N{MULTIPLICATION SIGN}{len(run[0])}", "".join(map(_shown, text)))


def _shown(character: str) -> str:
    sign = _SIGNS.get(character)
    if sign is not None:
        return sign
    # controls, formats (marks of direction among them), surrogates, unassigned and private ones, separators
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp", "Zs"):
        return (
            character.encode("ascii", errors="backslashreplace").decode("ascii")
            if character > "\x7f"
            else (f"\\x{ord(character):02x}")
        )
    return character


def cells(label: str) -> int:
    """Width of a label in cells of a monospaced font: two for wide characters, none for combining ones."""
    return sum(map(_cells_of, label))


@cache
def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shortened(label: str, most: int) -> str:
    """The label in at most ``most`` cells, its end replaced by an ellipsis if need be."""
    if cells(label) <= most:
        return label
    kept, width = [], 0
    for character in label:
        width += _cells_of(character)
        if width >= most:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _bytes_of(word: str | None) -> bytes | None:
    """The bytes behind an entry of a byte-level vocabulary or of one with byte fallback, or None."""
    if word is None:
        return None
    fallback = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", word)
    if fallback:
        return bytes.fromhex(fallback[1])
    alphabet = _byte_alphabet()
    return bytes(alphabet[letter] for letter in word) if all(letter in alphabet for letter in word) else None


@cache
def _byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies write bytes: printable ones of Latin-1 as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(others)}
