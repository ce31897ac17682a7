"""What a worker is given, and what it must be able to do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..methods import Method


@dataclass(frozen=True)
class Assignment:
    """The first message to a worker; goes through a pipe as JSON.

    Attributes:
        peer: which library to load.
        model: as the user named it.
        dtype: of the weights where transformers loads them; "auto" is the checkpoint's own.
        gguf: file of the same weights, or None.
        threads: of the processor.
        stop_tokens: ids that end a text, for libraries that do not read the model's generation config.
        context_tokens: room for the longest prompt and its output.
        temperature: 0 is greedy.
        head: folder of a trained head, or None.
        draft_model: as the user named it, or None.
    """

    peer: str
    model: str
    dtype: str
    gguf: str | None
    threads: int
    stop_tokens: tuple[int, ...]
    context_tokens: int
    temperature: float
    head: str | None = None
    draft_model: str | None = None


class Peer(Protocol):
    """A library with the model loaded; made from an `Assignment`."""

    #: versions, and what the weights are kept in
    facts: Mapping[str, Any]

    def method(self, name: str) -> Method:
        """One way to decode with it, by the name in its configuration."""
        ...
