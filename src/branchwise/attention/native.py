"""The backend `native`: tree attention in C for CPUs, one pass over the keys (`native_kernel/`).

Knows the shape of a call; the arithmetic is in C, compiled on first use (`native.kernel`). Without a compiler there is
no such backend, and `folded` does the work.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from math import e, log2
from pathlib import Path

import torch
from torch import Tensor

from ..cache.packing import Packing
from ..native.kernel import Kernel, load_kernel
from .layout import TreeLayout

NATIVE_SOURCES = Path(__file__).parent / "native_kernel"
_LOG2_E = log2(e)
NATIVE_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_LEAST_PART = 512
"""Committed tokens that are worth a task of their own."""
_BFLOAT16 = ("as float32", "in pairs (AVX-512 BF16)", "in tiles (AMX)")


class NativeUnavailable(ValueError):
    """The kernel cannot run here; the message says why and what to do."""


class _Call(ctypes.Structure):
    """`call` in native_kernel/task.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "output", "mixed", "largest", "total")),
        *((name, ctypes.c_void_p) for name in ("bias", "nodes", "depth", "committed", "starts", "sinks")),
        *((f"{name}_{axis}", ctypes.c_int64) for name in ("query", "key", "value") for axis in ("b", "h", "r")),
        *((name, ctypes.c_int64) for name in ("batch", "kv_heads", "group", "width", "columns")),
        *((name, ctypes.c_int64) for name in ("column_row", "dim", "value_dim", "window", "parts", "dtype", "threads")),
        *((name, ctypes.c_float) for name in ("factor", "cap")),
    )


@dataclass(frozen=True, eq=False)
class _Tables:
    """A batch of trees as the kernel reads it; the same for all layers with one window.

    Attributes:
        bias: float32 ``[B, T, N]``, 0 for a column that a node sees, else -inf; None for chains.
        nodes: int32 ``[B]``.
        depth: int32 ``[B, N]``.
        columns: T, see `TreeLayout.columns`.
    """

    bias: Tensor | None
    nodes: Tensor
    depth: Tensor
    columns: int


def native_attention(
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
    packing: Packing | None = None,
) -> Tensor:
    """Softmax attention over committed slots and tree ancestors, scores and sums in float32.

    Arguments are those of `Backend`. With ``packing`` the query is ``[1, H, T, D]``, the real nodes of all trees side
    by side, and so is what is returned: nothing is spread out, and nobody computes padding.

    Raises:
        NativeUnavailable: no compiler, or a device or dtype that the kernel does not know.
    """
    if query.device.type != "cpu" or query.dtype not in NATIVE_DTYPES:
        raise NativeUnavailable(
            f"the attention backend 'native' computes float32, bfloat16 and float16 on a CPU, got {query.dtype} on "
            f"{query.device}: use backend='auto'"
        )
    found = native()
    if found.library is None:
        raise NativeUnavailable(f"the attention backend 'native' is not available: {found.reason}; use backend='auto'")
    query, key, value = (_rows_in_one_piece(tensor) for tensor in (query, key, value))
    batch, width = layout.batch, layout.width
    heads, dim = query.shape[1], query.shape[3]
    kv_heads, value_dim = key.shape[1], value.shape[3]
    group, threads = heads // kv_heads, torch.get_num_threads()
    tables = layout.cached(("native", window), lambda: _tables(layout, window))
    parts = choose_parts(batch * kv_heads, max(committed), threads)
    rows = batch * kv_heads * parts * _padded(group * width)
    work = torch.empty(rows * (_padded(value_dim) + 2), dtype=torch.float32)
    # nodes outside, heads inside: that is how the layer behind wants them
    output = query.new_empty(query.shape[0], query.shape[2], heads, value_dim)
    logits = None if sinks is None else sinks.to(torch.float32).mul(_LOG2_E).contiguous()
    counts = layout.counts(committed)
    call = _Call(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        output.data_ptr(),
        work.data_ptr(),
        work.data_ptr() + 4 * rows * _padded(value_dim),
        work.data_ptr() + 4 * rows * (_padded(value_dim) + 1),
        None if tables.bias is None else tables.bias.data_ptr(),
        tables.nodes.data_ptr(),
        tables.depth.data_ptr(),
        counts.data_ptr(),
        None if packing is None else packing.starts.data_ptr(),
        None if logits is None else logits.data_ptr(),
        *query.stride()[:3],
        *key.stride()[:3],
        *value.stride()[:3],
        batch,
        kv_heads,
        group,
        width,
        tables.columns,
        key.shape[2] - tables.columns,
        dim,
        value_dim,
        window or 0,
        parts,
        NATIVE_DTYPES[query.dtype],
        threads,
        scale * _LOG2_E if softcap is None else 2 * scale * _LOG2_E / softcap,
        0.0 if softcap is None else softcap * _LOG2_E,
    )
    if found.library.tree_attention(ctypes.byref(call)):
        raise MemoryError(f"no memory for tree attention of {heads} heads and {width} nodes")
    return output.transpose(1, 2)


def _tables(layout: TreeLayout, window: int | None) -> _Tables:
    nodes, depth = torch.tensor(layout.nodes, dtype=torch.int32), layout.depth.int().contiguous()
    if layout.is_causal:  # a prompt may be long, its matrix is never built
        return _Tables(None, nodes, depth, layout.width)
    visible, column_depth = layout.columns()  # [B, N, T], [B, T]
    if window is not None:
        visible = visible & (layout.depth[:, :, None] - column_depth[:, None, :] < window)
    bias = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
    return _Tables(bias.transpose(1, 2).contiguous(), nodes, depth, visible.shape[2])


def choose_parts(pairs: int, longest: int, threads: int) -> int:
    """Into how many parts the committed tokens are split, so that threads get equal shares.

    Args:
        pairs: batch rows times key/value heads.
        longest: most committed tokens of a row.
        threads: that share the work.
    """
    most = max(1, longest // _LEAST_PART)
    for parts in range(1, most + 1):
        if pairs * parts % threads == 0 or pairs * parts >= 4 * threads:
            return parts
    return most


@cache
def native() -> Kernel:
    """Compiles the kernel if need be, and loads it; once per process."""
    kernel = load_kernel(NATIVE_SOURCES / "kernel.c")
    if kernel.library is None:
        return kernel
    way = _BFLOAT16[kernel.library.bfloat16_way()]
    return Kernel(kernel.library, f"{kernel.reason}; bfloat16 is multiplied {way}")


def _rows_in_one_piece(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _padded(size: int) -> int:
    """Lanes of a vector."""
    return -(-size // 16) * 16
