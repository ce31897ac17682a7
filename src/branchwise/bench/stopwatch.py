"""When tokens come out, measured from outside, by one instrument for every method and both libraries.

A streamer: both libraries hand it the prompt first and then every token as soon as it is final. **Decoding time** runs
from the moment the first run of tokens is out (one token of plain decoding, one or more of a speculating method) to the
moment the last one is. **Decoded tokens** are those after that first run. So the prefill, the first forward that some
libraries fuse with it, and whatever happens before and after the loop are left out for everybody.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor
from transformers.generation.streamers import BaseStreamer


@dataclass(frozen=True)
class Timing:
    """What a stopwatch read.

    Attributes:
        first_run_seconds: from the call to the first run of tokens: prefill and first step.
        decode_seconds: from there to the last token.
        first_run_tokens: tokens in the first run.
        decode_tokens: tokens after it.
        runs: how many runs of tokens there were, the first included: forwards that emitted something.
        cpu_seconds: processor time of this process, all threads, within the decoding time. Far below decoding time x
            threads, it tells of a machine that was busy with something else.
    """

    first_run_seconds: float
    decode_seconds: float
    first_run_tokens: int
    decode_tokens: int
    runs: int
    cpu_seconds: float


class Stopwatch(BaseStreamer):
    """Notes when each token comes out; starts when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._saw_prompt = False
        self._puts: list[tuple[float, float, int]] = []  # (when, processor time, tokens)

    def put(self, value: Tensor) -> None:
        """The prompt, then tokens, one or several at a time."""
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        self._puts.append((time.perf_counter(), time.process_time(), value.numel()))

    def end(self) -> None:
        """Nothing to do: the last token's time counts."""

    def read(self, run_lengths: list[int] | None = None) -> Timing:
        """The reading.

        Args:
            run_lengths: tokens of every run, for a library that puts the tokens of a run one by one; without it every
                put was a run.
        """
        lengths = [tokens for _, _, tokens in self._puts] if run_lengths is None else run_lengths
        total = sum(tokens for _, _, tokens in self._puts)
        if not lengths or sum(lengths) != total:
            raise RuntimeError(f"the streamer saw {total} tokens, the method reports runs of {lengths}")
        # the first put by which the first run is out
        counts = accumulate(tokens for _, _, tokens in self._puts)
        first = next(index for index, seen in enumerate(counts) if seen >= lengths[0])
        first_out, cpu_then, _ = self._puts[first]
        last_out, cpu_now, _ = self._puts[-1]
        return Timing(
            first_run_seconds=first_out - self._began,
            decode_seconds=last_out - first_out,
            first_run_tokens=lengths[0],
            decode_tokens=total - lengths[0],
            runs=len(lengths),
            cpu_seconds=cpu_now - cpu_then,
        )
