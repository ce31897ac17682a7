"""llama.cpp through the pip package that is installed.

llama-cpp-python is compiled where it is installed, for the processor there, and is taken first. The wheels of xllamacpp
need no compiler and are made for processors of every age: where this one can do more, the facts say so.
"""

from __future__ import annotations

import importlib
import re

import torch

from ..methods import Method
from .assignment import Assignment
from .llama_python import LlamaObjects
from .llama_server import LlamaServers
from .loading import gguf_format, gguf_of

#: package -> how it is used, the preferred one first
PACKAGES: dict[str, type[LlamaObjects] | type[LlamaServers]] = {"llama_cpp": LlamaObjects, "xllamacpp": LlamaServers}


class LlamaCppPeer:
    """See `assignment.Peer`."""

    def __init__(self, given: Assignment) -> None:
        self._package = _installed(given)
        self.facts = {
            "versions": self._package.versions,
            "weights": gguf_format(gguf_of(given)),
            "compiled_for": instructions(self._package.system_info),
            "processor_has": torch.backends.cpu.get_cpu_capability(),
        }

    def method(self, name: str) -> Method:
        """See `assignment.Peer.method`."""
        return self._package.method(name)


def instructions(system_info: str) -> list[str]:
    """Names of what llama.cpp says it uses, as in ``AVX2 = 1 | FMA = 1``."""
    return [name for name, used in re.findall(r"(\w+) = (\d)", system_info) if used == "1"]


def _installed(given: Assignment) -> LlamaObjects | LlamaServers:
    for package, way in PACKAGES.items():
        try:
            library = importlib.import_module(package)
        except ImportError:
            continue
        return way(library, given, gguf_of(given))
    raise ImportError("llama.cpp's package is missing: pip install 'branchwise[peers]', or llama-cpp-python")
