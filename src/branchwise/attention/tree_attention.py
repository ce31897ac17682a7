"""The public function: checks every argument, then hands over to a backend. Computes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .layout import Tree, TreeLayout
from .registry import get_backend


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: Tree | Sequence[Tree] | TreeLayout,
    *,
    committed: Tensor | Sequence[int] | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention of tree nodes to the committed tokens and to their own ancestors, never to siblings.

    Key and value hold S slots of the cache followed by the N nodes of the tree. Slot ``j < committed[b]`` holds
    position j, the other slots are ignored, node i has position ``committed[b] + depth[i]``. Node q sees key k if k is
    committed or an ancestor of q (or q itself), and ``0 <= pos_q - pos_k < window``.

    Args:
        query: ``[B, H, N, D]``.
        key: ``[B, K, S + N, D]`` with H a multiple of K; may be a strided view, nothing is copied.
        value: ``[B, K, S + N, Dv]``.
        tree: one tree or graph for all rows, or a sequence with one per row. Row b uses its first ``n_b`` nodes; the
            outputs of the others are 0. A `TreeLayout` of the same batch saves laying out the trees for every layer.
        committed: how many slots of each row are committed, int ``[B]``; None means all S.
        scale: factor of the scores; None means ``1 / sqrt(D)``.
        window: sliding window in positions, the node itself included; None for no limit.
        softcap: caps scores smoothly to ``(-softcap, softcap)`` as ``softcap * tanh(score / softcap)``.
        sinks: ``[H]`` extra logit per head that takes weight and contributes no value.
        backend: a registered name, or "auto".

    Returns:
        ``[B, H, N, Dv]`` in the dtype of the query.

    Raises:
        ValueError: shapes, sizes or values that do not fit together.
        TypeError: an argument of the wrong kind, such as integer queries or a float ``committed``.

    Example:
        >>> tree = TokenTree(tokens=(5, 8, 9, 8), parents=(-1, 0, 0, 1))
        >>> query, key, value = torch.randn(1, 8, 4, 64), torch.randn(1, 2, 10, 64), torch.randn(1, 2, 10, 64)
        >>> tree_attention(query, key, value, tree).shape  # 6 committed tokens, then the 4 nodes
        torch.Size([1, 8, 4, 64])
    """
    run = get_backend(backend)
    slots = _check_tensors(query, key, value)
    batch, _, width, dim = query.shape
    validated_score_options(window, softcap, sinks, query)
    counts = validated_committed(committed, batch, slots)
    layout = validated_layout(tree, batch, width, query.device)
    scale = dim**-0.5 if scale is None else scale
    return run(query, key, value, layout, counts, scale=scale, window=window, softcap=softcap, sinks=sinks)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Shapes, dtypes and devices of the three tensors; returns the number of slots S."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.dim() != 4:
            raise ValueError(f"{name} must be [batch, heads, rows, width], got shape {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}: convert it first")
        if tensor.dtype != query.dtype:
            raise ValueError(f"{name} is {tensor.dtype} but query is {query.dtype}: convert them to one dtype")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device} but query is on {query.device}: move them to one device")
        if tensor.shape[0] != query.shape[0]:
            raise ValueError(f"{name} has batch {tensor.shape[0]} but query has batch {query.shape[0]}")
    batch, heads, width, dim = query.shape
    kv_heads, rows = key.shape[1], key.shape[2]
    if 0 in (batch, heads, width, dim):
        raise ValueError(f"query must not be empty, got shape {tuple(query.shape)}")
    if key.shape[3] != dim:
        raise ValueError(f"key has width {key.shape[3]} but query has width {dim}")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"query has {heads} heads, which is not a multiple of the {kv_heads} heads of key")
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(
            f"value must have as many heads and rows as key, got {tuple(value.shape[1:3])} and {tuple(key.shape[1:3])}"
        )
    if rows < width:
        raise ValueError(
            f"key has {rows} rows for {width} nodes: append the keys and values of the {width} nodes after the slots"
        )
    return rows - width


def validated_score_options(window: int | None, softcap: float | None, sinks: Tensor | None, query: Tensor) -> None:
    """Raises for a window, a cap or sinks that attention cannot have."""
    if window is not None and (isinstance(window, bool) or not isinstance(window, int)):
        raise TypeError(f"window must be an int or None, got {window!r}")
    if window is not None and window < 1:
        raise ValueError(f"window must be >= 1 (a node always sees itself) or None for no limit, got {window}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be > 0 or None for no cap, got {softcap}")
    if sinks is None:
        return
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise TypeError(f"sinks must be a floating point tensor, got {getattr(sinks, 'dtype', type(sinks).__name__)}")
    if sinks.shape != (query.shape[1],):
        raise ValueError(f"sinks must be [heads] = [{query.shape[1]}], one logit per head, got {tuple(sinks.shape)}")
    if sinks.device != query.device:
        raise ValueError(f"sinks is on {sinks.device} but query is on {query.device}: move them to one device")


def validated_committed(committed: Tensor | Sequence[int] | None, batch: int, slots: int) -> tuple[int, ...]:
    """One count per batch row, checked against the slots."""
    if committed is None:
        return (slots,) * batch
    if isinstance(committed, Tensor):
        if committed.dtype == torch.bool or committed.is_floating_point() or committed.is_complex():
            raise TypeError(f"committed must be an integer tensor, got {committed.dtype}")
        if committed.dim() != 1:
            raise ValueError(f"committed must be [batch] = [{batch}], got shape {tuple(committed.shape)}")
        committed = committed.tolist()
    elif isinstance(committed, str) or not isinstance(committed, Sequence):
        raise TypeError(f"committed must be one int per row, got {committed!r}: use [{committed!r}] * batch")
    if len(committed) != batch:
        raise ValueError(f"committed must have one count per batch row ({batch}), got {len(committed)}")
    for row, count in enumerate(committed):
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"committed[{row}] must be an int, got {count!r}")
        if not 0 <= count <= slots:
            raise ValueError(
                f"committed[{row}] = {count} is outside [0, {slots}]: key has {slots} rows before those of the nodes"
            )
    return tuple(committed)


def validated_layout(
    tree: Tree | Sequence[Tree] | TreeLayout, batch: int, width: int, device: torch.device
) -> TreeLayout:
    """The trees laid out for the call, or the layout that was given, if it fits."""
    if not isinstance(tree, TreeLayout):
        return TreeLayout.from_trees(tree, batch=batch, width=width, device=device)
    if (tree.batch, tree.width) != (batch, width):
        raise ValueError(f"the layout is for {tree.batch} rows of {tree.width} nodes, query has {batch} of {width}")
    if tree.depth.device != device:
        raise ValueError(f"the layout is on {tree.depth.device} but query is on {device}: build it with device=")
    return tree
