"""Texts of finished requests, found again by their suffixes: bounded, shared by all lanes, kept as long as one likes.

Knows token ids. Knows no lane and no target. A context is looked up in the index of its length (see `context_index`)
and compared with the text, so that a chance meeting of hashes costs time and nothing else.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import NamedTuple

import numpy as np

from .block_text import BLOCK, GAP, NONE, BlockText
from .context_index import ContextIndex, context_key, context_keys

#: lengths of the contexts that are looked up, longest first
ORDERS = (8, 4, 2)
#: longest context that is compared
MAX_MATCH = 16
#: positions found for one context, the newest; and how many of other contexts in the same chain are passed over
MAX_CANDIDATES = 16
MAX_STRANGERS = 48
#: takes 14 MB
DEFAULT_MAX_TOKENS = 1 << 18
MAX_TOKEN = (1 << 31) - 1


class Match(NamedTuple):
    """The ``length`` tokens up to and at ``position`` are the last ones that were looked up."""

    position: int
    length: int


class SuffixStore:
    """At most ``max_tokens`` tokens of earlier texts and an index of what followed which context.

    Which block of text goes first is decided by frequency with ageing (LFU-DA; Arlitt et al. 2000): a block is worth
    its uses plus the age of the store when it was last used, the age being the worth of the block that went last. A use
    is a step in which the target confirmed what was read from the block. So what is used stays, what was used long ago
    goes in the end, and among equals the oldest goes.

    Memory: 4 bytes of text and at most 3 x 16 of index per token, 32 per block of 64, and a sixteenth of most of this
    in reserve while the store grows: less than 57 bytes per token; see `bytes`.

    Args:
        max_tokens: bound on the tokens held, one more per passage included; rounded down to whole blocks.

    Raises:
        ValueError: ``max_tokens`` is less than two blocks.
    """

    def __init__(self, max_tokens: int = DEFAULT_MAX_TOKENS) -> None:
        if max_tokens < 2 * BLOCK:
            raise ValueError(f"a suffix store holds at least {2 * BLOCK} tokens, got max_tokens {max_tokens}")
        self.max_tokens = max_tokens
        #: size of the vocabulary the tokens come from; None before the first lane
        self.vocab_size: int | None = None
        self.text = BlockText()
        #: per block
        self.uses = array("q")
        self.worth = array("q")
        self.age = 0
        self._indexes = [ContextIndex(order) for order in ORDERS]

    def __len__(self) -> int:
        """Tokens held, one more per passage included."""
        return len(self.text)

    @property
    def bytes(self) -> int:
        """Memory of everything that grows with the text, with what the arrays hold in reserve."""
        own = getsizeof(self.uses) + getsizeof(self.worth)
        return own + self.text.bytes + sum(index.bytes for index in self._indexes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SuffixStore:
        """The store in a file that `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged, of another version or no suffix store at all. Nothing of it is used.
        """
        from .suffix_file import load_store

        return load_store(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the store to ``path``, which at every moment holds the old file or the whole new one.

        Raises:
            OSError: the folder does not exist or cannot be written.
        """
        from .suffix_file import save_store

        save_store(self, path)

    def claim(self, vocab_size: int) -> None:
        """A lane is going to read and add tokens of a vocabulary of this size.

        Raises:
            ValueError: the store holds tokens of another vocabulary.
        """
        if self.vocab_size is None:
            self.vocab_size = vocab_size
        elif self.vocab_size != vocab_size:
            raise ValueError(
                f"this suffix store holds tokens of a vocabulary of {self.vocab_size}, the model has {vocab_size}: "
                "use one store per tokenizer"
            )

    # writing

    def add(self, tokens: Iterable[int]) -> None:
        """Takes in a passage. Of one longer than the store, the end stays.

        Raises:
            ValueError: a token is negative or needs more than 31 bits.
        """
        passage = list(tokens)
        wrong = [token for token in passage if not 0 <= token <= MAX_TOKEN]
        if wrong:
            raise ValueError(f"a suffix store holds token ids from 0 to {MAX_TOKEN}, got {wrong[0]}")
        newest_first: list[int] = []
        for token in passage:
            position = self._write(token)
            newest_first = [token, *newest_first[: ORDERS[0] - 1]]
            for index in self._indexes:
                if len(newest_first) >= index.order:
                    index.insert(position, context_key(newest_first[: index.order]))
        if passage:
            self._write(GAP)

    def _write(self, token: int) -> int:
        if self.text.is_full:
            has_room = (self.text.blocks + 1) * BLOCK <= self.max_tokens
            block = self._new_block() if has_room else self._evict()
            self.text.open_block(block)
            self.uses[block], self.worth[block] = 0, self.age
        return self.text.write(token)

    def _new_block(self) -> int:
        block = self.text.grow()
        self.uses.append(0)
        self.worth.append(0)
        for index in self._indexes:
            index.resize(len(self.text.tokens))
        if self._indexes[0].is_crowded:
            self.rebuild()
        return block

    def _evict(self) -> int:
        worth, born = np.array(self.worth), np.array(self.text.born)
        worth[self.text.open] = np.iinfo(np.int64).max  # the text goes on from there
        least = np.flatnonzero(worth == worth.min())
        block = int(least[born[least].argmin()])
        self.age = max(self.age, self.worth[block])
        after = self.text.following[block]
        for index in self._indexes:
            for position in range(block * BLOCK, (block + 1) * BLOCK):
                index.remove(position)
            if after != NONE:  # contexts that begin in the block
                for position in range(after * BLOCK, after * BLOCK + index.order - 1):
                    index.remove(position)
        self.text.empty(block)
        return block

    def use(self, positions: Iterable[int]) -> None:
        """The target confirmed tokens that were read at these positions: their blocks have one use more each."""
        for block in {position // BLOCK for position in positions}:
            self.uses[block] += 1
            self.worth[block] = self.age + self.uses[block]

    # reading

    def matches(self, window: Sequence[int]) -> list[Match]:
        """Where the end of ``window`` occurred and was continued; longest matches first, newest first among equals.

        Only contexts of the longest order that occurred at all are given, at most `MAX_CANDIDATES` of them.
        """
        newest_first = window[: -MAX_MATCH - 1 : -1]
        known: ContextIndex | None = None
        for index in reversed(self._indexes):  # what did not occur is no end of a longer context that did
            if len(newest_first) < index.order or not self._matches(index, newest_first, 1):
                break
            known = index
        if known is None:
            return []
        return sorted(self._matches(known, newest_first, MAX_CANDIDATES), key=lambda match: -match.length)

    def _matches(self, index: ContextIndex, newest_first: Sequence[int], most: int) -> list[Match]:
        found: list[Match] = []
        strangers = 0
        for position in index.chain(context_key(newest_first[: index.order])):
            length = self._match_length(position, newest_first)
            if length < index.order:
                strangers += 1
                if strangers > MAX_STRANGERS:
                    break
            elif self.text.after(position) != NONE:
                found.append(Match(position, length))
                if len(found) == most:
                    break
        return found

    def _match_length(self, position: int, newest_first: Sequence[int]) -> int:
        tokens, before = self.text.tokens, self.text.before
        length = 0
        for token in newest_first:
            if position == NONE or tokens[position] != token:
                break
            length += 1
            position = before(position)
        return length

    # checking and rebuilding

    def rebuild(self) -> None:
        """Makes the indexes anew from the text."""
        _index_text(self.text, self._indexes)

    def check_integrity(self) -> None:
        """Raises AssertionError when text, worth and indexes do not fit together."""
        self.check_blocks()
        fresh = [ContextIndex(order) for order in ORDERS]
        _index_text(self.text, fresh)
        for index, known in zip(fresh, self._indexes, strict=True):
            known.check_equal(index)

    def check_blocks(self) -> None:
        """The part of `check_integrity` that does not need the indexes."""
        self.text.check_integrity()
        blocks = self.text.blocks
        assert blocks * BLOCK <= self.max_tokens, f"{blocks} blocks of {BLOCK} in a store of {self.max_tokens} tokens"
        for name, column in (("uses", self.uses), ("worth", self.worth)):
            assert len(column) == blocks, f"{len(column)} entries of {name} for {blocks} blocks"
            assert all(value >= 0 for value in column), f"negative {name}"


def _index_text(text: BlockText, indexes: Sequence[ContextIndex]) -> None:
    """Fills the indexes from the text, oldest positions first."""
    positions, columns = text.columns(ORDERS[0])
    for index in indexes:
        whole = columns[index.order - 1] != GAP
        keys = context_keys([column[whole] for column in columns[: index.order]])
        index.build(len(text.tokens), positions[whole], keys)
