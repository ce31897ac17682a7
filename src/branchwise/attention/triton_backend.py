"""The backend `triton`: tree attention on GPUs, keys and values read once, long contexts split over the processors.

Knows shapes, tiles and what can go wrong; the arithmetic is `triton_kernel`'s. Scores and sums are float32 for inputs
of at most 32 bits, float64 for float64; products of float32 inputs are not rounded to tensor-float-32.

Nothing is copied or repeated: the trees travel as one bit per pair (`packed`), per-row lengths as one number, and both
are sent once per forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import e, log2
from types import ModuleType

import torch
from torch import Tensor

from .layout import TreeLayout
from .packed import WORD_BITS

_LOG2_E = log2(e)
_TILE_BYTES = 2**15
"""Keys and values of one step of a program. Two steps are in flight: fits the shared memory of every GPU since 2018."""
_PROGRAMS_PER_PROCESSOR = 2
_MOST_PARTS = 64


class TritonUnavailable(ValueError):
    """The kernel cannot run here; the message says why and what to do."""


@dataclass(frozen=True)
class Pages:
    """Where the rows of a paged cache are.

    Attributes:
        table: int32 or int64 ``[B, pages]``, contiguous: which page holds rows ``[i * rows, (i + 1) * rows)`` of a
            sequence.
        rows: rows per page.
    """

    table: Tensor
    rows: int


@dataclass(frozen=True)
class Tiling:
    """How the work is cut.

    Attributes:
        rows: queries per program.
        block: keys per step.
        columns: tree columns per step.
        parts: parts that the committed tokens are split into.
        warps: of 32 threads, per program.
    """

    rows: int
    block: int
    columns: int
    parts: int
    warps: int


def triton_attention(
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
    pages: Pages | None = None,
) -> Tensor:
    """Softmax attention over committed slots and tree ancestors by one or two kernel launches.

    Arguments are those of `Backend`. With ``pages``, key is ``[pages, K, rows, D]`` and value ``[pages, K, rows, Dv]``,
    and node i of row b is its row ``committed[b] + i``.

    Raises:
        ImportError: the package triton is missing.
        TritonUnavailable: the tensors are not on a GPU.
    """
    kernel = load_kernel(query.device)
    batch, heads, width, dim = query.shape
    kv_heads, value_dim = key.shape[1], value.shape[3]
    trees = layout.packed
    total = torch.float64 if query.dtype == torch.float64 else torch.float32
    visible = max(committed) if window is None else min(max(committed), window - 1)
    tiling = choose_tiling(query, kv_heads, value_dim, trees.columns, visible, _processors(query.device))
    output = query.new_empty(batch, heads, width, value_dim)
    partial, sums = output, output
    if tiling.parts > 1:
        partial = query.new_empty(tiling.parts, batch, heads, width, value_dim, dtype=total)
        sums = query.new_empty(tiling.parts, batch, heads, width, dtype=total)
    words = trees.words if trees.words is not None else trees.depth
    table = pages.table if pages is not None else trees.nodes[:, None]
    grid = (-(-(heads // kv_heads) * width // tiling.rows), batch * kv_heads, tiling.parts)
    kernel.attend_part[grid](
        query,
        key,
        value,
        partial,
        sums,
        sinks if sinks is not None else sums,
        table,
        words,
        trees.nodes,
        trees.depth,
        trees.column_depth,
        layout.counts(committed),
        *query.stride(),
        *key.stride(),
        *value.stride(),
        table.stride(0),
        key.shape[2] - trees.columns,
        batch,
        width,
        trees.columns,
        words.shape[-1],
        tiling.parts,
        window or 0,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        DIM=dim,
        VALUE_DIM=value_dim,
        PAD_DIM=_padded(dim),
        PAD_VALUE_DIM=_padded(value_dim),
        ROWS=tiling.rows,
        BLOCK=tiling.block,
        COLUMNS=tiling.columns,
        FACTOR=scale * _LOG2_E if softcap is None else 2 * scale * _LOG2_E / softcap,
        CAP=0 if softcap is None else softcap * _LOG2_E,
        PAGE=0 if pages is None else pages.rows,
        HAS_WINDOW=window is not None,
        HAS_SINKS=sinks is not None,
        IS_CAUSAL=trees.words is None,
        ONE_PART=tiling.parts == 1,
        WIDEN=query.dtype == torch.bfloat16 and is_interpreted(),
        SUM=getattr(kernel.tl, str(total).removeprefix("torch.")),
        num_warps=tiling.warps,
        num_stages=2,
    )
    if tiling.parts > 1:
        kernel.merge_parts[(batch * heads * width,)](
            partial,
            sums,
            sinks if sinks is not None else sums,
            output,
            tiling.parts,
            batch * heads * width,
            heads,
            width,
            VALUE_DIM=value_dim,
            PAD_VALUE_DIM=_padded(value_dim),
            PAD_PARTS=_power_of_two(tiling.parts),
            HAS_SINKS=sinks is not None,
        )
    return output


def choose_tiling(query: Tensor, kv_heads: int, value_dim: int, columns: int, visible: int, processors: int) -> Tiling:
    """Tiles for a call.

    Args:
        query: ``[B, H, N, D]``.
        kv_heads: K.
        value_dim: Dv.
        columns: tree columns T.
        visible: most committed tokens that a row sees.
        processors: multiprocessors of the device.
    """
    batch, heads, width, dim = query.shape
    row_bytes = (_padded(dim) + _padded(value_dim)) * query.element_size()
    block = min(128, max(16, _TILE_BYTES // row_bytes))
    rows = min(_padded(heads // kv_heads * width), 128 if query.element_size() == 2 else 64)
    programs = -(-(heads // kv_heads) * width // rows) * batch * kv_heads
    wanted = -(-_PROGRAMS_PER_PROCESSOR * processors // programs)
    # a part should be worth its share of the merge: at least four steps
    parts = max(1, min(wanted, visible // (4 * block), _MOST_PARTS))
    return Tiling(rows, block, min(block, _padded(columns), WORD_BITS), parts, warps=8 if rows == 128 else 4)


def load_kernel(device: torch.device) -> ModuleType:
    """The module of the kernels.

    Raises:
        ImportError: the package triton is missing.
        TritonUnavailable: ``device`` is no GPU and Triton's interpreter is off.
    """
    try:
        import triton  # noqa: F401
    except ImportError:
        raise ImportError(
            "the attention backend 'triton' needs the package triton: pip install 'branchwise[triton]'"
        ) from None
    if device.type != "cuda" and not is_interpreted():
        raise TritonUnavailable(
            f"the attention backend 'triton' needs a CUDA or ROCm device, the tensors are on {device}: use "
            "backend='folded' there (to check the kernel on a CPU, slowly, set TRITON_INTERPRET=1 before Python starts)"
        )
    from . import triton_kernel

    return triton_kernel


def is_interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter; the package must be there.

    The interpreter multiplies the bit patterns of bfloat16 as if they were integers, so these are widened there.
    """
    from triton import knobs

    return bool(knobs.runtime.interpret)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # the interpreter; small, so that only long contexts are split
    return torch.cuda.get_device_properties(device).multi_processor_count


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _padded(size: int) -> int:
    """The smallest tile side that a matrix unit takes."""
    return max(16, _power_of_two(size))


@cache
def has_triton() -> bool:
    """Whether the package triton is installed; it is not imported."""
    return find_spec("triton") is not None
