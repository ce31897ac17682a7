"""Tree attention as transformers calls it.

One function is registered, once, on first use, under one name; nothing happens at import. What differs between calls
(the tree, how many rows are committed) travels as a keyword argument of the model's forward, which transformers hands
through to the attention function: there is no global state, and two targets never see each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..cache.packing import Packing
from .layout import TreeLayout
from .registry import Backend, packed_attention

ATTENTION_NAME = "branchwise_tree"
#: keyword of the model's forward that carries the `AttentionStep`
STEP_KEYWORD = "branchwise_step"


class StepMissing(RuntimeError):
    """The attention was called without its step.

    By a model that does not hand keyword arguments through, or by a user who set the implementation by hand.
    """


@dataclass(eq=False)
class AttentionStep:
    """What one forward tells its attention layers.

    Attributes:
        layout: the trees of the batch.
        committed_rows: layer index -> committed rows per batch row in that layer's cache.
        window_of: layer index -> the window its cache was trimmed to, or None.
        backend: computes the attention.
        packing: how queries bring the nodes of all rows in one, or None when there is one row per batch row. Keys and
            values come from the cache, which has spread them already.
        layers_seen: layer indices in the order they called; the target checks that each came once.
    """

    layout: TreeLayout
    committed_rows: Callable[[int], tuple[int, ...]]
    window_of: Callable[[int], int | None]
    backend: Backend
    packing: Packing | None = None
    layers_seen: list[int] = field(default_factory=list)


def register() -> str:
    """Registers the attention and its mask function with transformers (idempotent); returns the name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION_NAME, _attend)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
    return ATTENTION_NAME


def _no_mask(*args: Any, **kwargs: Any) -> None:
    # the step carries the tree, a dense mask would only cost time; registered because transformers treats an attention
    # without a mask function differently from version to version
    return None


def _attend(
    module: nn.Module,
    query: Tensor,  # [B, H, N, D], or packed [1, H, T, D]
    key: Tensor,  # [B, K, S + N, D]
    value: Tensor,  # [B, K, S + N, Dv]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    branchwise_step: AttentionStep | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if branchwise_step is None:
        raise StepMissing(
            f"the attention {ATTENTION_NAME!r} runs only inside branchwise; set another attn_implementation on it"
        )
    # transformers sets it on every attention with a cache
    layer_idx: int = module.layer_idx  # type: ignore[assignment]
    step = branchwise_step
    step.layers_seen.append(layer_idx)
    windows = [window for window in (sliding_window, step.window_of(layer_idx)) if window is not None]
    run = step.backend if step.packing is None else partial(packed_attention, step.backend, step.packing)
    out = run(
        query,
        key,
        value,
        step.layout,
        step.committed_rows(layer_idx),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=min(windows) if windows else None,
        softcap=softcap,
        sinks=s_aux,
    )
    return out.transpose(1, 2), None  # [B, N, H, Dv] or [1, T, H, Dv]
