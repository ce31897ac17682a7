"""llama.cpp through the package llama-cpp-python: its own loop, and its own prompt lookup as draft model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..methods import Method, Run
from ..stopwatch import Stopwatch
from .assignment import Assignment
from .configuration import LOOKUP_NGRAM


class LlamaObjects:
    """Every method has a model of its own, for drafts are a setting of the model."""

    def __init__(self, library: Any, given: Assignment, file: Path) -> None:
        self._library = library
        self._given = given
        self._file = file
        self.versions = {"llama-cpp-python": library.__version__}
        self.system_info: str = library.llama_print_system_info().decode()

    def method(self, name: str) -> Method:
        """See `assignment.Peer.method`.

        Raises:
            ValueError: the package has no such drafts.
        """
        if name == "ngram-cache":
            raise ValueError("llama-cpp-python has no ngram-cache; it is measured where only xllamacpp is installed")
        runs = Runs(None if name == "plain" else self._lookup(int(name.removeprefix("lookup-"))))
        model = self._library.Llama(
            str(self._file),
            n_ctx=self._given.context_tokens,
            n_threads=self._given.threads,
            n_threads_batch=self._given.threads,
            draft_model=None if name == "plain" else runs,
            verbose=False,
        )
        return LlamaObjectMethod(name, model, runs, self._given)

    def _lookup(self, tokens: int) -> Any:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        return LlamaPromptLookupDecoding(max_ngram_size=LOOKUP_NGRAM, num_pred_tokens=tokens)


class Runs:
    """A draft model that notes when it is asked: once per forward, after the tokens of the one before are out."""

    def __init__(self, draft_model: Any) -> None:
        self._draft_model = draft_model
        self.lengths = [0]

    def __call__(self, *prefix: Any, **options: Any) -> Any:
        """The drafted tokens."""
        self.lengths.append(0)
        return self._draft_model(*prefix, **options)

    def start(self) -> None:
        """Begins a text."""
        self.lengths = [0]

    def add_token(self) -> None:
        """One token is out."""
        if self._draft_model is None and self.lengths[-1]:
            self.lengths.append(0)
        self.lengths[-1] += 1


class LlamaObjectMethod:
    """See `methods.Method`."""

    nodes = 1

    def __init__(self, name: str, model: Any, runs: Runs, given: Assignment) -> None:
        self.name = name
        self._model = model
        self._runs = runs
        self._stop_tokens = set(given.stop_tokens)
        self._sampling = {"temp": given.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}

    def run(self, prompt: Sequence[int], max_new_tokens: int, seed: int) -> Run:
        """See `methods.Method.run`."""
        self._model.reset()  # else it goes on from what this prompt shares with the last one
        self._model.set_seed(seed)
        self._runs.start()
        watch, tokens = Stopwatch(), list[int]()
        watch.put(torch.tensor([list(prompt)]))
        for token in self._model.generate(list(prompt), **self._sampling):
            watch.put(torch.tensor([token]))
            self._runs.add_token()
            tokens.append(int(token))
            if len(tokens) == max_new_tokens or token in self._stop_tokens:
                break
        return Run(tuple(tokens), watch.read(self._runs.lengths))
