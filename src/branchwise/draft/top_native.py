"""`top_tokens.py`'s selection in C, for CPUs: two passes over every row of logits (`top_kernel/`).

Knows the shape of a call; the arithmetic is in C, compiled on first use (`native.kernel`). Where there is no compiler,
and for whatever the kernel does not take, torch does the work.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ..native.kernel import Kernel, load_kernel

_SOURCE = Path(__file__).parent / "top_kernel" / "top.c"
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: entries that are inserted one by one, each past those it beats; torch sorts more of them faster
_MOST = 64
_BLOCK = 256
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64


def native_top(logits: Tensor, k: int, *, totals: bool) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Values float32 ``[N, k]`` and indices ``[N, k]`` of the k largest of ``logits [N, V]``, and `log_totals`.

    Of entries that tie, those with smaller indices come first.

    Args:
        logits: ``[N, V]``.
        k: 1 to V.
        totals: whether the logarithms ``[N, 1]`` of the sums of the rows' exponentials are wanted.

    Returns:
        None where the kernel has no answer: other devices and dtypes, large k, NaN, sums that are not finite, no
        compiler.
    """
    if logits.device.type != "cpu" or logits.dtype not in _DTYPES or not 1 <= k <= _MOST or not len(logits):
        return None
    library = top_kernel().library
    if library is None:
        return None
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, width = logits.shape
    values = torch.empty(rows, k, dtype=torch.float32)
    tokens = torch.empty(rows, k, dtype=torch.int64)
    sums = torch.empty(rows, 1, dtype=torch.float32) if totals else None
    work = torch.empty(rows * -(-width // _BLOCK), dtype=torch.float32)
    failed = library.top_tokens(
        logits.data_ptr(),
        rows,
        width,
        logits.stride(0) * logits.element_size(),
        k,
        _DTYPES[logits.dtype],
        torch.get_num_threads(),
        values.data_ptr(),
        tokens.data_ptr(),
        None if sums is None else sums.data_ptr(),
        work.data_ptr(),
    )
    return None if failed else (values, tokens, sums)


@cache
def top_kernel() -> Kernel:
    """Compiles the kernel if need be, and loads it; once per process."""
    kernel = load_kernel(_SOURCE)
    if kernel.library is not None:
        kernel.library.top_tokens.argtypes = (_ADDRESS, *[_NUMBER] * 6, *[_ADDRESS] * 4)
    return kernel
