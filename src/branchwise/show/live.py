"""Text written while it is generated. A transformers streamer; does not know where the text goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from ..decode.text import ShownText


class LiveText(BaseStreamer):
    """Writes text piece by piece, see `ShownText`.

    Args:
        tokenizer: decodes the tokens.
        write: takes each piece.
        stop_strings: what ends the text; a stop string and what follows it are not written.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], object], stop_strings: Sequence[str] = ()) -> None:
        self._text = ShownText(tokenizer, stop_strings)
        self._write = write
        self._saw_prompt = False

    def put(self, value: Tensor) -> None:
        """Takes the prompt at first, then new tokens."""
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        self._show(self._text.push(value.flatten().tolist()))

    def end(self) -> None:
        """Writes what was held back."""
        self._show(self._text.flush())

    def _show(self, piece: str) -> None:
        if piece:
            self._write(piece)
