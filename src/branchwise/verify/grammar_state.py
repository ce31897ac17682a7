"""One lane's place in a grammar: which tokens may follow the committed ones, and any path drafted below them.

Knows tokens, paths and a matcher that accepts tokens and rolls back. Knows no text, no tree and no law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: tokens below the committed ones, in order; ``()`` is the place right after them
Path = tuple[int, ...]

#: with more legal tokens than this nothing is looked for ahead: a text that goes on in one way only can be cut into
#: few tokens (measured at 49,152 tokens: 2 to 11)
AHEAD_TOKENS = 64


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A grammar over the vocabulary of one model.

    Attributes:
        matcher: makes a matcher from ``handle``; xgrammar's ``GrammarMatcher``.
        handle: xgrammar's compiled grammar.
        vocab_size: of the model.
        stop_tokens: legal where the text is complete, and nowhere else.
        tokenizer: what it was compiled for.
    """

    matcher: Callable[[Any], Any]
    handle: Any
    vocab_size: int
    stop_tokens: frozenset[int]
    tokenizer: Any

    def start(self) -> GrammarState:
        """The state of a new lane, before its first generated token."""
        return GrammarState(self)


class GrammarState:
    """Where one lane stands. Everything about paths is worked out once per step, and forgotten by `advance`.

    A path is *dead* when one of its tokens was illegal, and *over* when it holds a stop token. Nothing can be said
    about what follows either: `mask` gives None there, and `allows` gives False.

    Args:
        grammar: what to follow.

    Attributes:
        tokens: committed tokens, those of the prompt not included.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.grammar = grammar
        self.tokens: list[int] = []
        self._matcher = grammar.matcher(grammar.handle)
        # the interval of tokens the matcher has accepted: [committed | place)
        self._place: Path = ()
        self._bits = torch.empty(1, (grammar.vocab_size + 31) // 32, dtype=torch.int32)  # one bit per token
        self._rows: dict[Path, np.ndarray | None] = {}
        self._ahead: dict[Path, int | None] = {}

    def mask(self, path: Path) -> Tensor | None:
        """Bool ``[V]``, True where a token is legal after ``path``; None for a path that is dead or over.

        Not to be written to. All False where the text can go no further in this vocabulary.
        """
        row = self._row(path)
        return None if row is None else torch.from_numpy(row)

    def allows(self, path: Path, token: int) -> bool:
        """Whether ``token`` is legal after ``path``."""
        row = self._row(path)
        return row is not None and 0 <= token < len(row) and bool(row[token])

    def count(self, path: Path) -> int:
        """How many tokens are legal after ``path``."""
        row = self._row(path)
        return 0 if row is None else int(np.count_nonzero(row))

    def legal(self, path: Path) -> list[int]:
        """The legal tokens, ascending."""
        row = self._row(path)
        return [] if row is None else np.flatnonzero(row).tolist()

    def forced(self, path: Path) -> int | None:
        """The token after ``path`` when exactly one is legal."""
        return self.legal(path)[0] if self.count(path) == 1 else None

    def ahead(self, path: Path) -> int | None:
        """The likely token after ``path`` when the *text* can go on in one way only.

        Most texts can be cut into tokens in several ways, so that a forced text has more than one legal token. This is
        the longest one, which is mostly what the tokenizer, and so the model, would choose.
        """
        if path not in self._ahead:
            self._look_ahead(path)
        return self._ahead[path]

    def advance(self, tokens: Sequence[int]) -> None:
        """Commits tokens.

        Raises:
            ValueError: one of them is not legal; nothing was committed.
        """
        if not self._go(tuple(tokens)):
            self._go(())
            raise ValueError(f"tokens {list(tokens)} after {len(self.tokens)} others break the grammar")
        self.tokens.extend(tokens)
        self._place = ()
        self._rows.clear()
        self._ahead.clear()

    @property
    def is_over(self) -> bool:
        """Whether a stop token was committed."""
        return bool(self.tokens) and self.tokens[-1] in self.grammar.stop_tokens

    def _row(self, path: Path) -> np.ndarray | None:
        """Bool ``[V]`` of the legal tokens."""
        if path not in self._rows:
            self._rows[path] = self._read_row() if self._go(path) and not self._matcher.is_terminated() else None
        return self._rows[path]

    def _read_row(self) -> np.ndarray:
        self._matcher.fill_next_token_bitmask(self._bits)
        # the bits past the vocabulary are not defined
        packed = self._bits.numpy().view(np.uint8)[0]
        return np.unpackbits(packed, count=self.grammar.vocab_size, bitorder="little").view(np.bool_)

    def _go(self, path: Path) -> bool:
        """Moves the matcher to ``path``, back to what it shares with where it stands and on; False if it is dead."""
        shared = 0
        for here, there in zip(self._place, path, strict=False):
            if here != there:
                break
            shared += 1
        if shared < len(self._place):
            self._matcher.rollback(len(self._place) - shared)
            self._place = self._place[:shared]
        for token in path[shared:]:
            if self._matcher.is_terminated() or not 0 <= token < self.grammar.vocab_size:
                return False
            if not self._matcher.accept_token(token):
                return False
            self._place = (*self._place, token)
        return True

    def _look_ahead(self, path: Path) -> None:
        self._ahead[path] = None
        if not 1 < self.count(path) <= AHEAD_TOKENS:
            self._ahead[path] = self.forced(path)
            return
        self._go(path)
        for token in self._matcher.find_jump_forward_tokens():
            self._ahead[path] = token
            path = (*path, token)
