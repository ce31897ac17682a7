"""Whether another level of a draft tree pays: one more forward of a head, for what the nodes on it are likely to bring.

Knows promises, what came of them, and seconds. Knows no head and no tree.

The rule, after every level: a frontier whose paths have probabilities that add up to m promises, for the next level, so
many accepted tokens; r of them have come so far per token promised at that depth (nodes that other sources of a tree
claim do not count, so in a mixed tree it is what the head adds). A level of s seconds is run if

    r * m  >  s * tokens per second

of the steps lately: a level is worth its time if it brings more than that time brings otherwise, as in `tune.shared`.
Seconds include those of the target's forward, so where forwards are cheap drafts are flat.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from statistics import median_low

#: the first drafts have all levels, and one in so many later ones: so that deep ones are still known of
FIRST_FULL, FULL_EVERY = 2, 48
#: weight of earlier steps at each new one
MEMORY = 0.97
#: tokens promised, and come, before anything is known of a depth
PRIOR = 1.0
#: latest times of a level, or of a step, that count
REMEMBERED = 8


class LevelRule:
    """Decides level by level, for all lanes together: a level is one forward whatever the lanes.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._drafts = 0
        self._began = self._mark = 0.0
        self._is_open = False
        self._level_seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._promised: dict[int, float] = defaultdict(lambda: PRIOR)
        self._came: dict[int, float] = defaultdict(lambda: PRIOR)
        self._tokens = self._seconds = 0.0  # decayed: of steps with a draft

    def begin(self) -> None:
        """A draft begins."""
        self._drafts += 1
        self._is_open = True
        self._began = self._mark = self._clock()

    def ran(self, depth: int) -> None:
        """The level of ``depth`` (1: the root's children) is done."""
        now = self._clock()
        self._level_seconds[depth].append(now - self._mark)
        self._mark = now

    def pays(self, depth: int, promised: Sequence[float]) -> bool:
        """Whether to run the level that finds nodes of ``depth``.

        Args:
            depth: 2 or more.
            promised: of every lane whose tree still grows, the sum of the probabilities of its frontier's paths.
        """
        times = self._level_seconds.get(depth)
        if self._drafts <= FIRST_FULL or self._drafts % FULL_EVERY == 0 or not times or not self._seconds:
            return True
        gain = sum(promised) * self._came[depth] / self._promised[depth]
        return gain * self._seconds > median_low(times) * self._tokens

    def learn(self, promised: Sequence[float], accepted: Sequence[bool]) -> None:
        """One lane's step.

        Args:
            promised: for depth 2, 3, ..., as far as the lane's tree went.
            accepted: of the same depths, whether a node of the head's was accepted there.
        """
        for depth, (share, hit) in enumerate(zip(promised, accepted, strict=True), start=2):
            self._promised[depth] = MEMORY * self._promised[depth] + share
            self._came[depth] = MEMORY * self._came[depth] + hit

    def verified(self, tokens: int) -> None:
        """The step that the draft was for gave so many tokens in all lanes."""
        if not self._is_open:
            return  # nothing was drafted for it
        self._is_open = False
        self._tokens = MEMORY * self._tokens + tokens
        self._seconds = MEMORY * self._seconds + self._clock() - self._began
