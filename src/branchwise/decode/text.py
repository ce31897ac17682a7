"""Tokens to text, piece by piece: no partial characters, and the pieces add up to the text of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: what a tokenizer decodes an unfinished multi-byte character to
_UNFINISHED = "�"


class TextStream:
    """Decodes a growing list of tokens.

    Only a short tail is decoded again at each push: the tokens since the last settled piece, plus the settled piece
    before them, because a tokenizer may join a token differently when it stands first.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._tail: list[int] = []
        self._settled_tokens = 0  # tokens at the start of the tail whose text is out already
        self.text = ""

    def push(self, token: int) -> str:
        """Takes one token; returns the text that became certain, possibly empty."""
        self._tail.append(token)
        settled = self._decode(self._tail[: self._settled_tokens])
        whole = self._decode(self._tail)
        if whole.endswith(_UNFINISHED):
            return ""
        piece = whole.removeprefix(settled)
        if piece:
            self._tail = self._tail[self._settled_tokens :]
            self._settled_tokens = len(self._tail)
            self.text += piece
        return piece

    def flush(self) -> str:
        """The rest, when no more tokens come: an unfinished character is given out as the tokenizer decodes it."""
        rest = self._rest()
        self._tail, self._settled_tokens = [], 0
        self.text += rest
        return rest

    def text_with_rest(self) -> str:
        """All text so far, the uncertain end included."""
        return self.text + self._rest()

    def _rest(self) -> str:
        settled = self._decode(self._tail[: self._settled_tokens])
        return self._decode(self._tail).removeprefix(settled)

    def _decode(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        return self._tokenizer.decode(tokens, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False)


def first_stop(text: str, stop_strings: Sequence[str], start: int = 0) -> int | None:
    """Where the first stop string at or after ``start`` begins, or None."""
    return min((at for stop in stop_strings if (at := text.find(stop, start)) >= 0), default=None)


class ShownText:
    """Text as a reader may see it while it grows: never more than the finished text will hold.

    The end of the text that may still become a stop string is held back; a stop string and what follows it are not
    shown.

    Args:
        tokenizer: decodes the tokens; special ones are left out.
        stop_strings: what ends the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str] = ()) -> None:
        self._stream = TextStream(tokenizer)
        self._stops = tuple(stop_strings)
        self._held_back = max(map(len, self._stops), default=1) - 1
        self._shown = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Takes tokens; returns the text that may now be shown, possibly empty."""
        for token in tokens:
            self._stream.push(token)
        return self._advance(self._held_back)

    def flush(self) -> str:
        """What was held back, when no more tokens come."""
        self._stream.flush()
        return self._advance(0)

    def _advance(self, held_back: int) -> str:
        text, start = self._stream.text, self._shown
        # a stop string that is complete now began at or after what was shown
        stop = first_stop(text, self._stops, start)
        self._shown = max(start, len(text) - held_back if stop is None else stop)
        return text[start : self._shown]
