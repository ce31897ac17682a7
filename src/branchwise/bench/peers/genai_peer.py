"""OpenVINO GenAI on the CPU: plain, and with its prompt lookup. It reads the GGUF file itself.

It notes by its own clock when each run of tokens is out, the same span that `stopwatch` reads of the others; a callback
into Python for every run would cost it time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..methods import Method, Run
from ..stopwatch import Timing
from .assignment import Assignment
from .loading import gguf_format, gguf_of

#: longest run of last tokens that is looked up, as in GenAI's own example
MAX_NGRAM = 3


class GenAiPeer:
    """See `assignment.Peer`. Plain decoding has a pipeline of its own: prompt lookup is a switch of the constructor."""

    def __init__(self, given: Assignment) -> None:
        try:
            import openvino_genai
        except ImportError as error:
            raise ImportError(f"OpenVINO GenAI is missing ({error}): pip install 'branchwise[peers]'") from error
        self._library = openvino_genai
        self._given = given
        self._file = gguf_of(given)
        self._pipelines: dict[bool, Any] = {}
        self.facts = {
            "versions": {"openvino-genai": openvino_genai.__version__},
            "weights": gguf_format(self._file),
        }

    def method(self, name: str) -> Method:
        """See `assignment.Peer.method`."""
        looks_up = name != "plain"
        if looks_up not in self._pipelines:
            options = {"prompt_lookup": True} if looks_up else {}
            self._pipelines[looks_up] = self._library.LLMPipeline(
                str(self._file), "CPU", INFERENCE_NUM_THREADS=self._given.threads, **options
            )
        tokens = int(name.removeprefix("lookup-")) if looks_up else 0
        return GenAiMethod(name, self._library, self._pipelines[looks_up], self._given, tokens)


class GenAiMethod:
    """See `methods.Method`."""

    nodes = 1

    def __init__(self, name: str, library: Any, pipeline: Any, given: Assignment, lookup_tokens: int) -> None:
        self.name = name
        self._pipeline = pipeline
        self._config = library.GenerationConfig()
        self._config.apply_chat_template = False
        self._config.stop_token_ids = set(given.stop_tokens)
        if lookup_tokens:
            self._config.num_assistant_tokens = lookup_tokens
            self._config.max_ngram_size = MAX_NGRAM
        self._config.do_sample = given.temperature > 0
        if given.temperature > 0:
            self._config.temperature = given.temperature
            self._config.top_p = 1.0

    def run(self, prompt: Sequence[int], max_new_tokens: int, seed: int) -> Run:
        """See `methods.Method.run`."""
        import openvino

        self._config.max_new_tokens = max_new_tokens
        self._config.rng_seed = seed
        cpu = time.process_time()
        output = self._pipeline.generate(openvino.Tensor(np.array([list(prompt)])), self._config)
        tokens = tuple(output.tokens[0])
        metrics = output.perf_metrics
        raw = metrics.raw_metrics
        timing = read_timing(
            metrics.get_ttft().mean, raw.m_new_token_times, raw.m_batch_sizes, time.process_time() - cpu
        )
        if timing.first_run_tokens + timing.decode_tokens != len(tokens):
            raise RuntimeError(f"GenAI timed runs of {list(raw.m_batch_sizes)} tokens and returned {len(tokens)}")
        return Run(tokens, timing)


def read_timing(first_ms: float, times_ms: Sequence[float], run_lengths: Sequence[int], cpu_seconds: float) -> Timing:
    """GenAI's own reading as everybody's.

    Args:
        first_ms: from the call to the first run of tokens.
        times_ms: when each run of tokens was out, on a clock of its own.
        run_lengths: tokens of each.
        cpu_seconds: of the whole request; the part of decoding is taken by the time that it took.
    """
    decode_ms = times_ms[-1] - times_ms[0]
    return Timing(
        first_run_seconds=first_ms / 1000,
        decode_seconds=decode_ms / 1000,
        first_run_tokens=run_lengths[0],
        decode_tokens=sum(run_lengths[1:]),
        runs=len(run_lengths),
        cpu_seconds=cpu_seconds * decode_ms / (first_ms + decode_ms),
    )
