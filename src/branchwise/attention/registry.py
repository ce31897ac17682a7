"""Attention backends by name. Knows their common signature and nothing about how they compute."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from .blocked import blocked_attention
from .folded import folded_attention
from .layout import TreeLayout
from .reference import reference_attention


class Backend(Protocol):
    """Computes tree attention from validated arguments; `tree_attention` does the validating.

    Padding nodes get exact zeros. Ignored slots and padding rows of key and value may hold any finite numbers whose
    products with a query stay finite. Keys and values may be strided views of larger buffers.

    Args:
        query: ``[B, H, N, D]``.
        key: ``[B, K, S + N, D]``: S slots, then the N nodes of the tree; H is a multiple of K.
        value: ``[B, K, S + N, Dv]``.
        layout: the B trees.
        committed: per row, how many of the S slots are committed tokens.
        scale: factor of the scores.
        window: a node sees positions less than this far back; None for all.
        softcap: scores become ``softcap * tanh(score / softcap)`` before masking; None for no cap.
        sinks: ``[H]`` logits that join the softmax denominator of their head and contribute no value.

    Returns:
        ``[B, H, N, Dv]`` in the dtype of the query.
    """

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: TreeLayout,
        committed: tuple[int, ...],
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor: ...


AUTO_BACKEND = "folded"
"""What ``"auto"`` stands for."""

_BACKENDS: dict[str, Backend] = {
    "reference": reference_attention,
    "folded": folded_attention,
    "blocked": blocked_attention,
}


def register_backend(name: str, backend: Backend) -> None:
    """Makes ``backend`` available as ``tree_attention(..., backend=name)``.

    Raises:
        ValueError: the name is taken, empty, or ``"auto"``.
    """
    if not name or name == "auto" or name in _BACKENDS:
        raise ValueError(
            f"cannot register an attention backend as {name!r}: taken are 'auto', {_names()}; choose another"
        )
    _BACKENDS[name] = backend


def get_backend(name: str = "auto") -> Backend:
    """The backend called ``name``; ``"auto"`` is the fastest one that handles every argument.

    Raises:
        ValueError: no such backend; the message lists the registered names.
    """
    backend = _BACKENDS.get(AUTO_BACKEND if name == "auto" else name)
    if backend is None:
        raise ValueError(f"unknown attention backend {name!r}: registered are {_names()}, or 'auto'")
    return backend


def backend_names() -> tuple[str, ...]:
    """Names of all registered backends, ``"auto"`` not among them."""
    return tuple(_BACKENDS)


def _names() -> str:
    return ", ".join(map(repr, _BACKENDS))
