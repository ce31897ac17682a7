"""What counts as decoding time: everything after the first run of tokens, for every library."""

from __future__ import annotations

import pytest
import torch

from branchwise.bench import stopwatch
from branchwise.bench.stopwatch import Stopwatch

pytestmark = pytest.mark.core


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 2 * self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", clock)
    return clock


def feed(clock: Clock, *puts: tuple[float, int]) -> Stopwatch:
    clock.now = 10.0
    watch = Stopwatch()
    watch.put(torch.zeros(1, 7))  # the prompt
    for when, tokens in puts:
        clock.now = when
        watch.put(torch.zeros(tokens))
    watch.end()
    return watch


def test_plain_decoding_leaves_out_its_first_token(clock: Clock) -> None:
    timing = feed(clock, (13.0, 1), (14.0, 1), (15.0, 1)).read()
    assert (timing.first_run_seconds, timing.decode_seconds) == (3.0, 2.0)
    assert (timing.first_run_tokens, timing.decode_tokens, timing.runs) == (1, 2, 3)
    assert timing.cpu_seconds == 4.0


def test_a_first_run_of_several_tokens_earns_nothing(clock: Clock) -> None:
    """Runs of 3 and 2 tokens, put one by one as this library does: only the second run is timed."""
    puts = [(13.0, 1), (13.0, 1), (13.0, 1), (14.5, 1), (14.5, 1)]
    timing = feed(clock, *puts).read([3, 2])
    assert (timing.first_run_tokens, timing.decode_tokens, timing.runs) == (3, 2, 2)
    assert timing.decode_seconds == 1.5
    at_once = feed(clock, (13.0, 3), (14.5, 2)).read()
    assert at_once == timing


def test_runs_that_do_not_add_up_are_a_bug_not_a_result(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="saw 2 tokens"):
        feed(clock, (13.0, 2)).read([3])
