"""A stream of token passages in blocks that can be emptied one by one. Knows positions; finds nothing.

The stream is cut into blocks of 64 positions, and a gap ends each passage. An emptied block is written again wherever
in the stream it lies:

    block        0               1                2
    text     7 3 9 ... 4   4 1 gap 8 ... 2   2 5 gap . . .       `following` leads 0 -> 1 -> 2, `preceding` back;
                                                                 where a block is gone, its neighbours end
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from sys import getsizeof
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
GAP = -1
NONE = -1


class BlockText:
    """Blocks of text, the last of them open for writing.

    Attributes:
        tokens: what stands at every position, ``BLOCK`` per block; `GAP` where nothing does.
        following, preceding: for every block its neighbours in the stream, or `NONE`.
        born: for every block the number of blocks opened before it.
        open: the block that is being written, `NONE` before the first token.
        filled: positions of the open block that are written.
        births: number of blocks opened so far, emptied ones included.
    """

    def __init__(self) -> None:
        self.tokens = array("i")
        self.following = array("i")
        self.preceding = array("i")
        self.born = array("q")
        self.open = NONE
        self.filled = BLOCK
        self.births = 0

    @property
    def blocks(self) -> int:
        """Blocks in use."""
        return len(self.born)

    @property
    def bytes(self) -> int:
        """Memory, with what the arrays hold in reserve."""
        return sum(map(getsizeof, (self.tokens, self.following, self.preceding, self.born)))

    def __len__(self) -> int:
        return len(self.tokens) - BLOCK + self.filled if self.blocks else 0

    @property
    def is_full(self) -> bool:
        """Whether the next token needs another block."""
        return self.filled == BLOCK

    def write(self, token: int) -> int:
        """Appends to the open block and returns the position."""
        position = self.open * BLOCK + self.filled
        self.tokens[position] = token
        self.filled += 1
        return position

    def grow(self) -> int:
        """One more block, empty and not in the stream yet."""
        self.tokens.extend(array("i", [GAP]) * BLOCK)
        self.following.append(NONE)
        self.preceding.append(NONE)
        self.born.append(self.births)
        return self.blocks - 1

    def empty(self, block: int) -> None:
        """Erases a block and takes it out of the stream."""
        before, after = self.preceding[block], self.following[block]
        if before != NONE:
            self.following[before] = NONE
        if after != NONE:
            self.preceding[after] = NONE
        self.following[block] = self.preceding[block] = NONE
        self.tokens[block * BLOCK : (block + 1) * BLOCK] = array("i", [GAP]) * BLOCK

    def open_block(self, block: int) -> None:
        """Puts an empty block at the end of the stream."""
        if self.open != NONE:
            self.following[self.open] = block
        self.preceding[block] = self.open
        self.born[block] = self.births
        self.births += 1
        self.open, self.filled = block, 0

    # reading

    def after(self, position: int) -> int:
        """The position that continues ``position``, `NONE` where the passage ends."""
        position += 1
        if position % BLOCK == 0:
            block = self.following[position // BLOCK - 1]
            if block == NONE:
                return NONE
            position = block * BLOCK
        return position if self.tokens[position] != GAP else NONE

    def before(self, position: int) -> int:
        """The position before ``position`` in the stream, `NONE` where that is gone; it may be a gap."""
        if position % BLOCK:
            return position - 1
        block = self.preceding[position // BLOCK]
        return block * BLOCK + BLOCK - 1 if block != NONE else NONE

    def passages(self) -> Iterator[list[int]]:
        """Runs of tokens without a gap, in the order they were written."""
        for first in sorted(range(self.blocks), key=self.born.__getitem__):
            if self.preceding[first] == NONE:  # the others come with the block before them
                yield from self._runs(first)

    def _runs(self, block: int) -> Iterator[list[int]]:
        run: list[int] = []
        while block != NONE:
            for token in self.tokens[block * BLOCK : (block + 1) * BLOCK]:
                if token != GAP:
                    run.append(token)
                elif run:
                    yield run
                    run = []
            block = self.following[block]
        if run:
            yield run

    def columns(self, length: int) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        """All positions, in the order they were written, and what stands there and up to ``length - 1`` before.

        Returns:
            ``[P]`` positions, and ``length`` columns ``[P]`` of tokens, those at the positions first; a passage has
            gaps before its first token.
        """
        tokens, preceding = np.array(self.tokens), np.array(self.preceding)
        blocks = np.argsort(np.array(self.born), kind="stable")
        positions = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        columns: list[NDArray[Any]] = []
        at = positions  # NONE once the passage has ended
        for _ in range(length):
            column = np.where(at == NONE, GAP, tokens[at])
            columns.append(column)
            block_before = preceding[at // BLOCK]
            end_before = np.where(block_before == NONE, NONE, block_before * BLOCK + BLOCK - 1)
            at = np.where(column == GAP, NONE, np.where(at % BLOCK == 0, end_before, at - 1))
        return positions, columns

    # checking

    def check_integrity(self) -> None:
        """Raises AssertionError when blocks and their links do not fit together."""
        blocks = self.blocks
        assert len(self.tokens) == blocks * BLOCK, f"{len(self.tokens)} positions in {blocks} blocks"
        assert all(token >= GAP for token in self.tokens), "a token is below 0"
        for name, column in (("preceding", self.preceding), ("following", self.following)):
            assert len(column) == blocks, f"{len(column)} entries of {name} for {blocks} blocks"
            assert all(NONE <= other < blocks for other in column), f"a block of {name} does not exist"
        for block, (before, after) in enumerate(zip(self.preceding, self.following, strict=True)):
            assert after == NONE or self.preceding[after] == block, f"block {block} leads to {after}, but not back"
            assert before == NONE or self.following[before] == block, f"block {block} comes from {before}, but not back"
            assert before == NONE or self.born[before] < self.born[block], f"block {block} follows a younger one"
            assert 0 <= self.born[block] < self.births, f"block {block} was born after the last"
        assert len(set(self.born)) == blocks, "two blocks were born at once"
        if not blocks:
            assert (self.open, self.filled) == (NONE, BLOCK), "an open block where there is none"
            return
        assert 0 <= self.open < blocks and 0 <= self.filled <= BLOCK, "the open block does not exist"
        assert self.born[self.open] == self.births - 1, "the open block is not the youngest"
        rest = self.tokens[self.open * BLOCK + self.filled : (self.open + 1) * BLOCK]
        assert all(token == GAP for token in rest), "the open block holds more than it counts"
