"""How much of a prompt to read between two steps, so that those who are being served do not wait for it.

Knows seconds and counts of tokens. A long prompt read at once would stop every running stream; read in chunks that take
about as long as a step, it costs them a part of their speed and no gap that anybody sees.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

#: tokens of a chunk: never fewer, never more, and the first while others run
SMALLEST, LARGEST, FIRST = 4, 512, 16
#: seconds of reading per second of a step. The gap between two tokens is then 2.4 steps, under the bar of 3
SHARE = 1.4
#: latest steps whose median is a step's length
STEPS = 9
#: times that the oldest prompt is passed by shorter ones in a row
PATIENCE = 4


class ChunkPacer:
    """Learns how long steps and chunks take, and sizes the next chunk by it."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=STEPS)
        self._chunk = FIRST

    def chunk(self, running: bool) -> int:
        """Tokens to read now.

        Args:
            running: whether anybody waits for the next step.
        """
        return self._chunk if running else LARGEST

    def seconds(self, running: bool) -> float:
        """How long reading may take now."""
        return SHARE * median(self._steps) if running and self._steps else math.inf

    def learn_step(self, seconds: float) -> None:
        """A step took so long."""
        self._steps.append(seconds)

    def learn_chunk(self, tokens: int, seconds: float) -> None:
        """Reading so many tokens took so long: the next chunk may take `SHARE` of a step."""
        if not self._steps or seconds <= 0:
            return
        wanted = tokens * SHARE * median(self._steps) / seconds
        if tokens < self._chunk and wanted < self._chunk:
            return  # what every forward costs weighs more in a small one: it says nothing against larger ones
        # up by a doubling at most: small chunks cost more per token than large ones. Down at once: one was too long
        self._chunk = round(min(max(wanted, SMALLEST), 2 * self._chunk, LARGEST))


class ReadingOrder:
    """Whose prompt is read next: the one with the least to read, but the oldest is passed `PATIENCE` times at most."""

    def __init__(self) -> None:
        self._passed = 0

    def pick(self, unread: list[int]) -> int:
        """Index of the prompt to go on with; ``unread`` are tokens, the oldest prompt first."""
        shortest = min(range(len(unread)), key=unread.__getitem__)
        if shortest and self._passed >= PATIENCE:
            shortest = 0
        self._passed = self._passed + 1 if shortest else 0
        return shortest
