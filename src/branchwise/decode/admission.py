"""Who gets a lane, and when: the rows there are, and the order of those who wait.

Knows counts of tokens; knows no model and no cache. All lanes of a forward are as long as the longest, so ``n`` lanes
take ``n * longest`` rows, in whole blocks:

    lane 0   | ############......      |
    lane 1   | ##########################|    3 lanes x 2 blocks, whatever the lengths of the others
    lane 2   | ###                     |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

#: times that the head of a queue is passed by others that fit before everybody waits for it
PATIENCE = 8

Waiting = TypeVar("Waiting")


class RequestTooLarge(ValueError):
    """The request would not fit even if it were alone."""


class QueueFull(RuntimeError):
    """As many requests wait as may; try again later."""


class LanePool:
    """Rows that lanes may take together.

    Args:
        rows: rows of keys and values per layer, over all lanes.
        tree_rows: rows that a lane needs beyond its committed tokens: those of its largest tree.
        block_rows: lanes grow by so many rows.

    Raises:
        ValueError: there is not one block.
    """

    def __init__(self, rows: int, tree_rows: int, block_rows: int = 64) -> None:
        if rows < block_rows:
            raise ValueError(f"a pool needs at least one block of {block_rows} rows, got {rows}")
        self.blocks = rows // block_rows
        self.block_rows = block_rows
        self._tree_rows = tree_rows

    @property
    def rows(self) -> int:
        """Rows in whole blocks."""
        return self.blocks * self.block_rows

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest request that fits alone, prompt and output."""
        return self.rows - self._tree_rows

    def taken(self, lengths: Sequence[int]) -> int:
        """Blocks that lanes of these lengths (tokens) take."""
        if not lengths:
            return 0
        return len(lengths) * -(-(max(lengths) + self._tree_rows) // self.block_rows)

    def fits(self, lengths: Sequence[int]) -> bool:
        """Whether lanes of these lengths fit side by side."""
        return self.taken(lengths) <= self.blocks

    def check(self, prompt_tokens: int, new_tokens: int) -> None:
        """Raises `RequestTooLarge` for a request that could not run to its end even alone."""
        if not self.fits([prompt_tokens + new_tokens]):
            tokens, most = prompt_tokens + new_tokens, self.most_tokens
            raise RequestTooLarge(
                f"{prompt_tokens} prompt tokens and up to {new_tokens} new ones are {tokens} tokens, but this engine's "
                f"pool of {self.rows} rows holds {most} for one request; shorten the prompt, lower max_new_tokens, or "
                "give the engine a larger pool"
            )


class WaitingLine(Generic[Waiting]):
    """First come, first served, as far as it fits.

    Where the head does not fit, others that do may pass it, but only `PATIENCE` times: nobody starves.
    """

    def __init__(self) -> None:
        self._line: deque[Waiting] = deque()
        self._passed = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._line)

    def join(self, items: Iterable[Waiting]) -> None:
        """New arrivals, in order."""
        self._line.extend(items)

    def return_to_front(self, item: Waiting) -> None:
        """Somebody who was served already and had to leave."""
        self._line.appendleft(item)
        self._passed = 0

    def leave(self, item: Waiting) -> None:
        """Somebody gives up."""
        if self._line[0] is item:
            self._passed = 0
        self._line.remove(item)

    def next(self, fits: Callable[[Waiting], bool]) -> Waiting | None:
        """Takes out the first that fits, or nobody."""
        for at, item in enumerate(self._line):
            if at and self._passed >= PATIENCE:
                return None
            if fits(item):
                self._passed = self._passed + 1 if at else 0
                del self._line[at]
                return item
        return None
