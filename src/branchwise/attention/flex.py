"""The backend `flex`: tree attention as a mask and a score modification of torch's FlexAttention.

Knows how to say "committed or ancestor, and within the window" for one pair of query and key; the kernel that torch
generates from it does the rest. On a GPU it is compiled, once per combination of options, and skips blocks of keys that
no node sees. Elsewhere it runs uncompiled, all scores in memory: for checking, not for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from .layout import TreeLayout

Modification = Callable[..., Tensor]


def flex_attention(
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
    """Softmax attention over committed slots and tree ancestors through `torch.nn.attention.flex_attention`.

    Arguments are those of `Backend`.
    """
    slots = key.shape[2] - query.shape[2]
    block_mask = layout.cached(
        ("flex", committed, slots, window), lambda: _block_mask(layout, committed, slots, window, query.device)
    )
    with nullcontext() if query.is_cuda else _uncompiled():
        call: Any = _compiled() if query.is_cuda else flex.flex_attention
        output = call(
            query,
            key,
            value,
            score_mod=None if softcap is None else _soft_cap(softcap),
            block_mask=block_mask,
            scale=scale,
            enable_gqa=True,
            **({} if sinks is None else _ask_for_logsum()),
        )  # [B, H, N, Dv], with sinks also float32 [B, H, N]
    if sinks is not None:
        output, logsum = output
        logsum = getattr(logsum, "lse", logsum)
        # a sink only adds to the denominator: sum / (sum + e^sink)
        share = torch.sigmoid(logsum - sinks.to(logsum.dtype)[:, None])  # [B, H, N]
        output = (output * share[..., None]).to(query.dtype)
    return layout.zero_padding(output)


def visible(layout: TreeLayout, committed: tuple[int, ...], slots: int, window: int | None) -> Modification:
    """The mask as a function of indices, for FlexAttention.

    Column ``k`` is a slot, or column ``k - first`` of the tree: the last T columns are those that need a matrix.
    """
    seen, column_depth = layout.columns()  # [B, N, T], [B, T]
    # a tensor, because torch compiles anew when a number in here changes
    first = torch.tensor(slots + layout.width - seen.shape[2], device=seen.device)
    counts, depth = layout.counts(committed), layout.depth

    def tree_mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        is_slot = k < first
        column = torch.where(is_slot, 0, k - first)
        mask = torch.where(is_slot, k < counts[b], seen[b, q, column])
        if window is not None:
            position = torch.where(is_slot, k, counts[b] + column_depth[b, column])
            mask = mask & (counts[b] + depth[b, q] - position < window)
        return mask

    return tree_mask


def _block_mask(
    layout: TreeLayout, committed: tuple[int, ...], slots: int, window: int | None, device: torch.device
) -> Any:
    return flex.create_block_mask(
        visible(layout, committed, slots, window),
        B=layout.batch,
        H=None,
        Q_LEN=layout.width,
        KV_LEN=slots + layout.width,
        device=str(device),
    )


@cache
def _soft_cap(cap: float) -> Modification:
    # cached: torch compiles anew for every new function object
    def soft_cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return soft_cap


@cache
def _compiled() -> Callable[..., Any]:
    # dynamic: the context grows with every step
    return torch.compile(flex.flex_attention, dynamic=True)


@cache
def _ask_for_logsum() -> dict[str, Any]:
    request = getattr(flex, "AuxRequest", None)  # torch 2.9
    return {"return_lse": True} if request is None else {"return_aux": request(lse=True)}


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Keeps torch from tracing the call for a compiler that is not used: it would do so for every new shape."""
    flag = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    before = getattr(flex, flag, False)
    setattr(flex, flag, True)
    try:
        yield
    finally:
        setattr(flex, flag, before)
