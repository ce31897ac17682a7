"""Text shown while it is generated, never more than the finished text will hold.

A transformers streamer. Knows tokens and stop strings; does not know where the text goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from ..decode.text import TextStream


class LiveText(BaseStreamer):
    """Writes text piece by piece. The end of the text that may still become a stop string is held back.

    Args:
        tokenizer: decodes the tokens.
        write: takes each piece.
        stop_strings: what ends the text; a stop string and what follows it are not written.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], object], stop_strings: Sequence[str] = ()) -> None:
        self._text = TextStream(tokenizer)
        self._write = write
        self._stops = tuple(stop_strings)
        self._held_back = max(map(len, self._stops), default=1) - 1
        self._written = 0
        self._saw_prompt = False

    def put(self, value: Tensor) -> None:
        """Takes the prompt at first, then new tokens."""
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        for token in value.flatten().tolist():
            self._text.push(token)
        self._show(self._held_back)

    def end(self) -> None:
        """Writes what was held back."""
        self._text.flush()
        self._show(0)

    def _show(self, held_back: int) -> None:
        text = self._text.text
        # a stop string that is complete now began at or after what was written
        found = [at for stop in self._stops if (at := text.find(stop, self._written)) >= 0]
        limit = min(found) if found else len(text) - held_back
        if limit > self._written:
            self._write(text[self._written : limit])
            self._written = limit
