"""Whether a draft that costs forwards is worth them in this step.

Knows how much the free drafts promise, what came of such promises before, and seconds. Knows no source and no tree.

The rule. Let a be the expected number of accepted tokens, summed over the lanes, L their number, F the seconds from the
end of drafting to the verdict (the target's forward, mostly) and M the seconds of the costly drafts:

    ask  if  (a_full + L) / (F + M)  >  (a_free + L) / F

which is: tokens per second with the costly drafts against without. Both expectations are learned, apart for every size
of the promise (the sum of the free tree's scores): what the free tree would have given is known in every step, and what
the full tree adds to it in those in which it was made. This is the difference within a step: steps differ by more than
drafts do, and averages over different steps would hide it. Most drafts add nothing and a few add much, so a handful of
steps says little, and what is known of promises of about that size counts beside it. F and M are medians of the latest
steps.

The same in seconds: asking loses M - (a_full - a_free) F / (a_free + L). A drafter that reads the text itself has all
of it to read when a lane asks for the first time: so many seconds per token count as well, spread over the steps that a
lane may have yet. Where the rule does not know enough of a promise it looks, that is, asks. All looks but the first few
are paid for out of a small share of the time, so that costly drafts that never pay cost next to nothing; and looks are
some steps apart, so that whoever sizes the trees learns meanwhile what the free drafts alone cost and bring.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

#: promises between two of these, in tokens, share their experience
EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
#: a promise is met with the costly drafts so often before the rule decides
FIRST_ASKED = 4
#: weight of earlier steps of the same promise at each new one
MEMORY = 0.95
#: the costly drafts are asked for again when what is known of them weighs less than this (one step weighs 1 at first,
#: and this after 27 more)
FORGOTTEN = 0.25
#: looks that cost nothing, and the share of the time that later ones may cost
FREE_LOOKS = 2
LOOK_SHARE = 0.02
#: steps from one look to the next, at least
LOOK_EVERY = 4
#: steps of a promise's own that weigh as much as what promises of about its size brought
PRIOR = 4.0
#: weight of a promise one size larger or smaller among those
NEIGHBOUR = 0.25
#: latest steps whose seconds count
SECONDS_KEPT = 8
#: steps of a lane over which the reading of its text is spread
SPREAD_STEPS = 64


@dataclass
class _Promise:
    """What came of promises of one size.

    Attributes:
        free, free_weight: decayed sums of the tokens the free tree gave, and of steps.
        gain, gain_weight: the same of the tokens the full tree gave beyond those, in the steps in which it was made.
        asked: how often it was made.
    """

    free: float = 0.0
    free_weight: float = 0.0
    gain: float = 0.0
    gain_weight: float = 0.0
    asked: int = 0


@dataclass
class AskRule:
    """Decides step by step, for all lanes together: a level of the small model is one forward whatever the lanes.

    Args:
        clock: seconds.
    """

    clock: Callable[[], float] = time.perf_counter
    _promises: list[_Promise] = field(default_factory=lambda: [_Promise() for _ in range(len(EDGES) + 1)])
    _costly: deque[float] = field(default_factory=lambda: deque(maxlen=SECONDS_KEPT))
    _reading: deque[float] = field(default_factory=lambda: deque(maxlen=SECONDS_KEPT))  # seconds per token
    _forward: deque[float] = field(default_factory=lambda: deque(maxlen=SECONDS_KEPT))
    _drafted_at: float | None = None
    _step: int = 0
    _looks: int = 0
    _last_look: int = -LOOK_EVERY
    _allowance: float = 0.0  # seconds that looks may cost by now
    _first_reading: float = 0.0  # seconds of it that the lanes of the latest step would take

    def wants(self, promised: Sequence[float], unread: int = 0) -> bool:
        """Whether to ask for the costly drafts.

        Args:
            promised: what the free trees of all lanes promise.
            unread: tokens of the lanes that never asked before.
        """
        self._step += 1
        if not self._forward or not self._costly:
            return self._look(0.0)
        sizes = [_size(sum_) for sum_ in promised]
        loss, self._first_reading = self._loss(sizes), unread * median(self._reading or (0.0,))
        if loss + self._first_reading / SPREAD_STEPS < 0:
            return True
        promises = [self._promises[size] for size in sizes]
        if all(promise.asked >= FIRST_ASKED and promise.gain_weight > FORGOTTEN for promise in promises):
            return False
        return self._look(loss + self._first_reading)

    def _look(self, loss: float) -> bool:
        """Asks to know more, if that may cost so much now."""
        if self._step - self._last_look < LOOK_EVERY:
            return False
        if self._looks >= FREE_LOOKS:
            if loss > self._allowance:
                return False
            self._allowance -= loss
        self._looks += 1
        self._last_look = self._step
        return True

    def _loss(self, sizes: Sequence[int]) -> float:
        """Seconds that asking is expected to lose, given the size of every lane's promise."""
        forward, costly = median(self._forward), median(self._costly)
        promises = [self._promises[size] for size in sizes]
        free = sum(promise.free / promise.free_weight if promise.free_weight else 0.0 for promise in promises)
        gain = sum(self._gain(size) for size in sizes)
        return costly - gain * forward / (free + len(sizes))

    def _gain(self, size: int) -> float:
        """Tokens that the costly drafts add for one lane whose promise is of this size."""
        shares = [NEIGHBOUR ** abs(other - size) for other in range(len(self._promises))]
        gain = sum(share * other.gain for share, other in zip(shares, self._promises, strict=True))
        weight = sum(share * other.gain_weight for share, other in zip(shares, self._promises, strict=True))
        alike = gain / weight if weight else 0.0
        promise = self._promises[size]
        return (promise.gain + PRIOR * alike) / (promise.gain_weight + PRIOR)

    def asked(self, seconds: float, unread: int = 0) -> None:
        """The costly drafts took so long, with so many tokens that were read for the first time."""
        if unread:
            self._reading.append(max(0.0, seconds - median(self._costly or (0.0,))) / unread)
        if not unread or not self._costly:
            self._costly.append(seconds)

    def drafted(self) -> None:
        """The drafts are handed over."""
        self._drafted_at = self.clock()

    def verified(self) -> None:
        """The verdicts are in."""
        if self._drafted_at is not None:
            seconds = self.clock() - self._drafted_at
            self._forward.append(seconds)
            # what one look may cost, not more: or a long time in which drafts paid would buy a burst of them
            dearest = max(self._costly, default=0.0) + self._first_reading
            self._allowance = min(self._allowance + LOOK_SHARE * seconds, dearest)
            self._drafted_at = None

    def learn(self, promised: float, free: int, full: int | None) -> None:
        """One lane's step.

        Args:
            promised: as given to `wants`.
            free: tokens that the free tree alone would have had accepted.
            full: tokens accepted, when the costly drafts were in the tree.
        """
        promise = self._promises[_size(promised)]
        promise.free = promise.free * MEMORY + free
        promise.free_weight = promise.free_weight * MEMORY + 1.0
        promise.gain *= MEMORY
        promise.gain_weight *= MEMORY
        if full is not None:
            promise.gain += full - free
            promise.gain_weight += 1.0
            promise.asked += 1


def _size(promised: float) -> int:
    """The class of a promise."""
    return bisect(EDGES, promised)
