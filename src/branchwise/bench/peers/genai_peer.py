"""OpenVINO GenAI on the CPU: plain, and with its prompt lookup. It reads the GGUF file itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..methods import Method, Run
from ..stopwatch import Stopwatch
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
        self._library = library
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
        ids = torch.tensor([list(prompt)])
        inputs = openvino.Tensor(ids.numpy())
        watch = Stopwatch()
        watch.put(ids)
        output = self._pipeline.generate(inputs, self._config, self._streamer(watch))
        return Run(tuple(output.tokens[0]), watch.read())

    def _streamer(self, watch: Stopwatch) -> Any:
        base: Any = self._library.StreamerBase
        go_on = self._library.StreamingStatus.RUNNING

        class Streamer(base):
            """Every call brings the tokens of one forward."""

            def write(self, token: int | Sequence[int]) -> Any:
                watch.put(torch.tensor([token]).flatten())
                return go_on

            def end(self) -> None:
                pass

        return Streamer()
