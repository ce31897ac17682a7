"""What an engine has done so far, in numbers that only grow, and how long its users waited.

Knows counts and seconds. Read from any thread: single numbers are always whole, though two of them may be a step apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..draft.protocol import StepRecord

#: upper bounds of the buckets, seconds
TTFT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
GAP_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
#: depths up to which accepted tokens are counted by position; deeper ones count in the totals only
POSITIONS = 16


@dataclass
class Histogram:
    """Counts of observations by size.

    Attributes:
        bounds: upper bounds of the buckets, rising; one bucket more takes the rest.
        counts: observations per bucket.
        total: sum of all observations.
    """

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Takes one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass
class EngineStatistics:
    """Counters of one engine.

    Attributes:
        running: requests that take part in steps.
        reading: requests whose prompt is being read.
        waiting: requests in the queue.
        steps: forwards over trees.
        drafts: trees with at least one drafted node.
        draft_tokens: drafted nodes that were verified.
        accepted_tokens: those of them that were accepted.
        accepted_by_depth: accepted nodes at depth 1, 2, ...
        prompt_tokens: tokens of the prompts of all requests that were started.
        reused_tokens: those of them that were copied instead of read.
        generated_tokens: emitted tokens.
        preemptions: times a request had to make room.
        finished: requests by how they ended: ``stop``, ``length``, ``cancelled`` or ``error``.
        refused: requests turned away because the queue was full.
        time_to_first_token: seconds from `submit` to the first token.
        gaps: seconds between two runs of one request.
    """

    running: int = 0
    reading: int = 0
    waiting: int = 0
    steps: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_depth: list[int] = field(default_factory=lambda: [0] * POSITIONS)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_BOUNDS))

    def count_step(self, record: StepRecord) -> None:
        """Takes in one request's part of a step."""
        self.generated_tokens += len(record.tokens)
        drafted = len(record.draft.tree) - 1
        if not drafted:
            return
        accepted = len(record.verdict.path) - 1
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        for depth in range(min(accepted, POSITIONS)):
            self.accepted_by_depth[depth] += 1
