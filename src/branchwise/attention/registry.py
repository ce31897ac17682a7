"""Attention backends by name, and which one is used when nobody says. Knows nothing about how they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..cache.packing import Packing
from .blocked import blocked_attention
from .folded import PROMPT_NODES, folded_attention, how
from .layout import TreeLayout
from .native import NATIVE_DTYPES, native, native_attention
from .reference import reference_attention
from .triton_backend import has_triton, triton_attention


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


@dataclass(frozen=True)
class Choice:
    """What ``"auto"`` does with a call.

    Attributes:
        backend: its name.
        reason: why, as a sentence.
    """

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    nodes: int | None = None,
) -> Choice:
    """Which backend ``"auto"`` uses for such a call of `tree_attention`, and why.

    Only device, dtype and shapes of the tensors count, and ``nodes``, those of the largest tree where the query holds
    several side by side. The choice is a function of these, never of a measurement, so that equal calls give equal
    outputs.
    """
    nodes, dim, value_dim = nodes or query.shape[2], query.shape[3], value.shape[3]
    plain = softcap is None and sinks is None and value_dim == dim
    if query.device.type == "cpu" and query.dtype in NATIVE_DTYPES and not (plain and nodes >= PROMPT_NODES):
        kernel = native()
        if kernel.library is not None:
            return Choice("native", f"on a CPU it reads keys and values once; {kernel.reason}")
        return Choice("folded", f"the native kernel is not available ({kernel.reason}); {how(query, plain)}")
    if query.device.type != "cuda":
        return Choice("folded", how(query, plain))
    if query.dtype == torch.float64:
        return Choice("folded", "float64 is for checking, and GPUs have no fast products for it")
    if max(dim, value_dim) > _WIDEST_TRITON_HEAD:
        return Choice("folded", f"heads of width {max(dim, value_dim)} do not fit the tiles of the triton kernel")
    if plain and nodes >= PROMPT_NODES:
        return Choice("folded", f"{nodes} nodes are a prompt, for which the fused kernel of torch is made")
    if not has_triton():
        return Choice("folded", "the triton kernel reads less, but is not installed: pip install 'branchwise[triton]'")
    return Choice("triton", "on a GPU it reads keys and values once, and splits long contexts over the processors")


_WIDEST_TRITON_HEAD = 256


def _auto_attention(
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
) -> Tensor:
    run = _BACKENDS[explain(query, key, value, softcap=softcap, sinks=sinks).backend]
    return run(query, key, value, layout, committed, scale=scale, window=window, softcap=softcap, sinks=sinks)


def packed_attention(
    backend: Backend,
    packing: Packing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    committed: tuple[int, ...],
    **options: Any,
) -> Tensor:
    """A backend for queries that hold the real nodes of all trees side by side, ``[1, H, T, D]`` to ``[1, H, T, Dv]``.

    Keys and values come as for `Backend`, and so does everything else.
    """
    if backend is _auto_attention:
        asked = {name: options.get(name) for name in ("softcap", "sinks")}
        backend = _BACKENDS[explain(query, key, value, nodes=layout.width, **asked).backend]
    if backend is native_attention:
        return native_attention(query, key, value, layout, committed, packing=packing, **options)
    return packing.gather(backend(packing.spread(query), key, value, layout, committed, **options))


def _flex_attention(*args: Any, **kwargs: Any) -> Tensor:
    # its module takes torch a while to import
    from .flex import flex_attention

    return flex_attention(*args, **kwargs)


_BACKENDS: dict[str, Backend] = {
    "reference": reference_attention,
    "folded": folded_attention,
    "blocked": blocked_attention,
    "native": native_attention,
    "triton": triton_attention,
    "flex": _flex_attention,
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
    """The backend called ``name``; ``"auto"`` chooses one for every call, see `explain`.

    Raises:
        ValueError: no such backend; the message lists the registered names.
    """
    backend = _auto_attention if name == "auto" else _BACKENDS.get(name)
    if backend is None:
        raise ValueError(f"unknown attention backend {name!r}: registered are {_names()}, or 'auto'")
    return backend


def backend_names() -> tuple[str, ...]:
    """Names of all registered backends, ``"auto"`` not among them."""
    return tuple(_BACKENDS)


def _names() -> str:
    return ", ".join(map(repr, _BACKENDS))
