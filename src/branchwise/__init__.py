"""branchwise: exact tree speculation for Hugging Face causal language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .warning import BranchwiseWarning

if TYPE_CHECKING:
    from .attention.tree_attention import tree_attention
    from .decode import Engine, Generation, SpeculativeOutput, Speculator, custom_generate, generate
    from .target import UnsupportedModel
    from .tree import TokenGraph, TokenTree
    from .verify import Grammar

__version__ = "0.1.0"

#: where each public name lives; imported on first use, so that ``import branchwise`` stays quick
_HOMES = {
    "Engine": "decode",
    "Generation": "decode",
    "Grammar": "verify",
    "SpeculativeOutput": "decode",
    "Speculator": "decode",
    "TokenGraph": "tree",
    "TokenTree": "tree",
    "UnsupportedModel": "target",
    "custom_generate": "decode",
    "generate": "decode",
    "tree_attention": "attention",
}

__all__ = [
    "BranchwiseWarning",
    "Engine",
    "Generation",
    "Grammar",
    "SpeculativeOutput",
    "Speculator",
    "TokenGraph",
    "TokenTree",
    "UnsupportedModel",
    "__version__",
    "custom_generate",
    "generate",
    "tree_attention",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'branchwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
