"""Rotary embeddings whose frequencies depend on the length.

Two kinds exist in transformers (`modeling_rope_utils.dynamic_rope_update`), and both would let a drafted node change
what other tokens see:

* ``longrope`` turns every token of a forward with one set of factors, short or long, chosen by the largest position. At
  the boundary plain decoding starts over: it recomputes the whole cache with the long factors.
* ``dynamic`` recomputes the frequencies from the largest position once that passes the trained length. Each token keeps
  the frequencies of the step in which it was computed.

So no tree may reach past the boundary: below it, nodes are kept below; above it, a ``dynamic`` tree is a lone root.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class LengthDependentRotary:
    """The boundary and the modules whose buffers move with the length.

    Attributes:
        boundary: positions 0 .. boundary - 1 use the trained frequencies.
        starts_over: whether plain decoding recomputes the cache at the boundary (``longrope``).
        modules: the rotary modules, to restore after each forward.
    """

    boundary: int
    starts_over: bool
    modules: tuple[nn.Module, ...]

    def depth_limit(self, length: int) -> int | None:
        """Deepest node of a tree whose root is at position ``length``."""
        if length < self.boundary:
            return self.boundary - 1 - length
        return None if self.starts_over else 0

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Puts back every buffer and plain attribute of the rotary modules afterwards, also after an exception.

        Frequencies past the boundary are a function of the largest position alone as long as lengths only grow, so
        starting every forward from the model's own state gives the frequencies of plain decoding.
        """
        saved = []
        for module in self.modules:
            buffers = {name: (b, b.clone()) for name, b in module._buffers.items() if b is not None}
            plain = {k: v for k, v in module.__dict__.items() if not k.startswith("_")}
            saved.append((module, buffers, plain))
        try:
            yield
        finally:
            for module, buffers, plain in saved:
                for name, (buffer, value) in buffers.items():
                    buffer.copy_(value)  # in place first: some versions write into the buffer they were given
                    module._buffers[name] = buffer
                for name in [k for k in module.__dict__ if not k.startswith("_") and k not in plain]:
                    del module.__dict__[name]
                module.__dict__.update(plain)


def find_length_dependent_rotary(model: nn.Module) -> LengthDependentRotary | None:
    """The model's length-dependent rotary embedding, or None when its frequencies are fixed."""
    modules, kinds, boundaries = [], set(), []
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        names = rope_type.values() if isinstance(rope_type, dict) else (rope_type,)
        for name in names:
            if not isinstance(name, str) or not ("dynamic" in name or name == "longrope"):
                continue
            modules.append(module)
            kinds.add("longrope" if name == "longrope" else "dynamic")
            boundaries.append(_boundary(module))
    if not modules:
        return None
    return LengthDependentRotary(min(boundaries), kinds == {"longrope"}, tuple(dict.fromkeys(modules)))


def _boundary(module: nn.Module) -> int:
    config: Any = module.config
    rope = getattr(config, "rope_parameters", None) or {}
    layers = [rope, *(v for v in rope.values() if isinstance(v, dict))]
    for parameters in layers:
        if parameters.get("original_max_position_embeddings"):
            return int(parameters["original_max_position_embeddings"])
    original = getattr(config, "original_max_position_embeddings", None)
    trained: Any = original or getattr(module, "original_max_seq_len", None) or config.max_position_embeddings
    return int(trained)
