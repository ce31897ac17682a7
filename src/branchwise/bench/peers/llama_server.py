"""llama.cpp through the package xllamacpp, which runs llama.cpp's own server inside the process.

The server tells prefill and decoding apart by its own clock: from the first token to the last, which is what
`stopwatch` reads of the others. With greedy decoding it is spared the sorting of candidates. Drafts are llama.cpp's
"ngram-simple" (a copy of what followed the last two tokens earlier) and "ngram-cache" (its lookup example).
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..methods import Method, Run
from ..stopwatch import Timing
from .assignment import Assignment
from .configuration import LOOKUP_NGRAM


class LlamaServers:
    """Every method has a server of its own, for drafts are a setting of the server."""

    def __init__(self, library: Any, given: Assignment, file: Path) -> None:
        self._library = library
        self._given = given
        self._file = file
        self.versions = {"xllamacpp": library.__version__}
        self.system_info: str = library.get_system_info()

    def method(self, name: str) -> Method:
        """See `assignment.Peer.method`."""
        return LlamaServerMethod(name, self._library.Server(self._settings(name)), self._given.temperature)

    def _settings(self, name: str) -> Any:
        settings = self._library.CommonParams()
        settings.model.path = str(self._file)
        settings.n_ctx = self._given.context_tokens
        settings.n_parallel = 1
        settings.fit_params = False
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = self._given.threads
        settings.cache_prompt = settings.cache_idle_slots = False
        settings.cache_ram_mib = 0
        settings.hostnames = ["127.0.0.1"]
        settings.port = 0
        settings.ui = False
        settings.verbosity = 1  # errors
        self._set_drafts(settings.speculative, name)
        return settings

    def _set_drafts(self, speculative: Any, name: str) -> None:
        kinds = self._library.common_speculative_type
        if name == "ngram-cache":
            speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_CACHE]
        elif name != "plain":
            speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            speculative.ngram_simple.size_n = LOOKUP_NGRAM
            speculative.ngram_simple.size_m = int(name.removeprefix("lookup-"))


class LlamaServerMethod:
    """See `methods.Method`."""

    nodes = 1

    def __init__(self, name: str, server: Any, temperature: float) -> None:
        self.name = name
        self._server = server
        self._temperature = temperature

    def run(self, prompt: Sequence[int], max_new_tokens: int, seed: int) -> Run:
        """See `methods.Method.run`."""
        cpu = time.process_time()
        answer = self._post(
            {
                "prompt": list(prompt),
                "n_predict": max_new_tokens,
                "seed": seed,
                "return_tokens": True,
                "cache_prompt": False,
                "temperature": self._temperature,
                "top_k": 0 if self._temperature > 0 else 1,
                "top_p": 1.0,
                "min_p": 0.0,
            }
        )
        timing = read_timing(answer["timings"], len(prompt), time.process_time() - cpu)
        return Run(tuple(answer["tokens"]), timing)

    def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        # a proxy of the user's has no business between this process and itself
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request) as response:
                answer: dict[str, Any] = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"llama.cpp answered {error.code}: {error.read().decode(errors='replace')}") from None
        return answer


def read_timing(told: Mapping[str, Any], prompt_tokens: int, cpu_seconds: float) -> Timing:
    """The server's own reading as everybody's.

    Args:
        told: the ``timings`` of an answer.
        prompt_tokens: of the request.
        cpu_seconds: of the whole request; the part of decoding is taken by the time that it took.

    Raises:
        RuntimeError: the server did not read the prompt as it was given, and times would not be of the same thing.
    """
    if told["prompt_n"] != prompt_tokens:
        raise RuntimeError(f"llama.cpp read {told['prompt_n']} tokens of a prompt of {prompt_tokens}")
    decode_ms, prompt_ms, tokens = told["predicted_ms"], told["prompt_ms"], told["predicted_n"]
    return Timing(
        first_run_seconds=prompt_ms / 1000,
        decode_seconds=decode_ms / 1000,
        first_run_tokens=1,
        decode_tokens=tokens - 1,
        runs=tokens - told.get("draft_n_accepted", 0),
        cpu_seconds=cpu_seconds * decode_ms / (prompt_ms + decode_ms),
    )
