"""Long prompts beside running streams, on a clock that only the model moves: nobody's stream stalls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest

from branchwise.decode.engine import Engine
from branchwise.decode.handle import Handle
from branchwise.decode.pacing import FIRST, LARGEST, PATIENCE, SMALLEST, ChunkPacer, ReadingOrder
from branchwise.decode.request import Request
from branchwise.decode.stopping import StopRules
from branchwise.verify.law import Sampler
from loop_rig import ScriptedTarget

pytestmark = pytest.mark.core

SCRIPT = [(7 * i * i + i) % 31 + 1 for i in range(8400)]
BAR = 3.0


class TimedTarget(ScriptedTarget):
    """Forwards take time: a share of their own, and more per token the longer the context is.

    Args:
        fixed, per_token, per_pair: seconds of a forward, of each token, of each token and 1,000 tokens before it.
    """

    def __init__(self, fixed: float, per_token: float, per_pair: float) -> None:
        super().__init__(SCRIPT, vocab_size=37)
        self.now = 0.0
        self._fixed, self._per_token, self._per_pair = fixed, per_token, per_pair

    def _pass(self, tokens: int, context: int) -> None:
        self.now += self._fixed + tokens * (self._per_token + self._per_pair * context / 1000)

    def feed(self, lane: int, tokens: Sequence[int], feature_layers: tuple[int, ...] = ()) -> dict[int, Any]:
        self._pass(len(tokens), self.lengths[lane])
        return super().feed(lane, tokens)

    def forward(self, trees, feature_layers=()):
        self._pass(sum(map(len, trees.values())), max(self.lengths.values()))
        return super().forward(trees)


#: seconds: a small model on a CPU, one whose long contexts are dear, one bound by arithmetic, one by its memory
MACHINES = ((0.038, 0.001, 0.0), (0.035, 0.001, 0.002), (0.002, 0.02, 0.001), (0.05, 0.0001, 0.0001))


class Clocked:
    """Streams in one engine, and the times at which each got its tokens."""

    def __init__(self, machine: tuple[float, float, float], **options: Any) -> None:
        self.target = TimedTarget(*machine)
        self.engine = Engine(
            self.target,
            drafter="none",
            budget=1,
            pool_tokens=2**18,
            prefix_bytes=0,
            clock=lambda: self.target.now,
            **options,
        )
        self.times: dict[int, list[float]] = {}

    def submit(self, prompt_tokens: int, new_tokens: int) -> Handle:
        number = len(self.times)
        times = self.times[number] = []

        def note(run: tuple[int, ...]) -> None:
            times.append(self.target.now)

        request = Request(tuple(SCRIPT[:prompt_tokens]), Sampler(), StopRules(new_tokens), on_tokens=note)
        return self.engine.submit(request)

    def run(self, steps: int | None = None) -> None:
        while self.engine.step() and (steps is None or steps > 0):
            steps = None if steps is None else steps - 1

    def gaps(self, number: int) -> list[float]:
        times = self.times[number]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_prompt_of_8k_tokens_does_not_stall_running_streams(machine):
    clocked = Clocked(machine)
    for _ in range(3):
        clocked.submit(12, 220)
    clocked.run(40)
    long = clocked.submit(8000, 4)
    clocked.run()
    assert long.result(timeout=0).tokens == tuple(SCRIPT[8000:8004])
    for stream in range(3):
        gaps = clocked.gaps(stream)
        assert max(gaps) <= BAR * median(gaps)


def test_reading_it_at_once_would(monkeypatch):
    """The control: without pacing the same streams stall for a hundred steps."""
    monkeypatch.setattr(ChunkPacer, "chunk", lambda self, running: 10_000)
    clocked = Clocked(MACHINES[0])
    clocked.submit(12, 220)
    clocked.run(40)
    clocked.submit(8000, 4)
    clocked.run()
    assert max(clocked.gaps(0)) > 100 * median(clocked.gaps(0))


def test_a_short_prompt_passes_a_long_one_and_the_long_one_still_arrives():
    clocked = Clocked(MACHINES[0])
    clocked.submit(12, 400)
    clocked.run(10)
    long = clocked.submit(6000, 2)
    clocked.run(3)
    short = [clocked.submit(30, 2) for _ in range(20)]
    clocked.run()
    assert all(handle.first_token_at < long.first_token_at for handle in short)
    assert long.is_done


def test_nobody_running_means_large_chunks():
    clocked = Clocked(MACHINES[0])
    clocked.submit(4000, 1)
    steps = 0
    while clocked.engine.step():
        steps += 1
    assert steps <= 4000 / LARGEST + 2


def test_chunks_follow_the_steps():
    pacer = ChunkPacer()
    assert pacer.chunk(running=True) == FIRST and pacer.chunk(running=False) == LARGEST
    for _ in range(3):
        pacer.learn_step(0.04)
    pacer.learn_chunk(FIRST, 0.020)
    assert pacer.chunk(running=True) == 2 * FIRST, "up by a doubling at most"
    pacer.learn_chunk(2 * FIRST, 0.56)
    assert pacer.chunk(running=True) == SMALLEST, "down at once"
    pacer.learn_chunk(3, 0.050)
    assert pacer.chunk(running=True) == SMALLEST, "a small rest of a prompt says nothing"
    assert pacer.seconds(running=True) == pytest.approx(0.056)


def test_the_shortest_prompt_is_read_first_and_the_oldest_is_not_forgotten():
    order = ReadingOrder()
    picks = [order.pick([500, 20, 30]) for _ in range(2 * (PATIENCE + 1))]
    assert picks == ([1] * PATIENCE + [0]) * 2
    assert ReadingOrder().pick([5, 5]) == 0
