"""A copy of one lane's committed rows that outlives the lane.

Knows rows and windows; does not know which tokens they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Snapshot:
    """Keys and values of the first tokens of some lane.

    A layer with a sliding window may have dropped its oldest rows: it can then serve only lengths whose window it still
    holds.

    Args:
        tokens: committed tokens the rows stand for.
        rows: per layer keys ``[K, S, D]`` and values ``[K, S, Dv]``, the last S of these tokens.
        windows: sliding window of every layer, or None.
    """

    def __init__(self, tokens: int, rows: Sequence[tuple[Tensor, Tensor]], windows: Sequence[int | None]) -> None:
        self.tokens = tokens
        self._rows = list(rows)
        self._windows = list(windows)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(t.numel() * t.element_size() for pair in self._rows for t in pair)

    def reach(self, tokens: int) -> int:
        """How many of the first ``tokens`` tokens this can serve: all of them, as many as it has, or none."""
        tokens = min(tokens, self.tokens)
        for (keys, _), window in zip(self._rows, self._windows, strict=True):
            dropped = self.tokens - keys.shape[1]
            # a window of w positions needs the last w - 1 rows before the next token
            if dropped and (window is None or dropped > tokens - (window - 1)):
                return 0
        return tokens

    def check_fills(self, lane: int, held: int, tokens: int) -> None:
        """Whether the first ``tokens`` tokens can be put into a lane that holds ``held``.

        Raises:
            ValueError: the lane is not empty, or this does not hold what so many tokens need.
        """
        if held:
            raise ValueError(f"lane {lane} holds {held} tokens already: only an empty lane can be filled")
        if not 0 < tokens <= self.reach(tokens):
            raise ValueError(f"a snapshot of {self.tokens} tokens cannot serve the first {tokens} of them")

    def first(self, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Per layer the rows of the first ``tokens`` tokens, as far as they are held."""
        dropped = [self.tokens - keys.shape[1] for keys, _ in self._rows]
        return [
            (keys[:, : tokens - gone], values[:, : tokens - gone])
            for (keys, values), gone in zip(self._rows, dropped, strict=True)
        ]
