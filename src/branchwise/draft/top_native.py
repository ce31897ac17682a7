"""`top_tokens.py`'s selection in C, for CPUs: two passes over every row of logits (`top_kernel/`).

Knows the shape of a call; the arithmetic is in C, compiled on first use (`native.kernel`). Where there is no compiler,
and for whatever the kernel does not take, torch does the work.
"""

from __future__ import annotations

import ctypes
from array import array
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ..native.kernel import Kernel, load_kernel

TOP_SOURCES = Path(__file__).parent / "top_kernel"
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: entries that are inserted one by one, each past those it beats; torch sorts more of them faster
_MOST = 64
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64


def native_top(logits: Tensor, k: int, *, as_log_probabilities: bool) -> tuple[array[float], array[int]] | None:
    """The k largest entries of every row of ``[N, V]``.

    Args:
        logits: ``[N, V]``.
        k: 1 to V.
        as_log_probabilities: whether to give those instead of the logits; at most 0.

    Returns:
        ``[N * k]`` values and ``[N * k]`` indices; of entries that tie, those with smaller indices come first. None
        where the kernel has no answer: other devices and dtypes, large k, NaN, no compiler, and log-probabilities of a
        row without a finite sum.
    """
    rows, width = logits.shape
    if not (logits.is_cpu and logits.dtype in _DTYPES and 1 <= k <= _MOST and rows):
        return None
    library = top_kernel().library
    if library is None:
        return None
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    # arrays of Python: tensors of so few numbers take longer to make and to read
    values, tokens = array("f", bytes(4 * rows * k)), array("q", bytes(8 * rows * k))
    failed = library.top_tokens(
        logits.data_ptr(),
        rows,
        width,
        logits.stride(0) * logits.element_size(),
        k,
        _DTYPES[logits.dtype],
        torch.get_num_threads(),
        as_log_probabilities,
        values.buffer_info()[0],
        tokens.buffer_info()[0],
    )
    return None if failed else (values, tokens)


@cache
def top_kernel() -> Kernel:
    """Compiles the kernel if need be, and loads it; once per process."""
    kernel = load_kernel(TOP_SOURCES / "top.c")
    if kernel.library is not None:
        kernel.library.top_tokens.argtypes = (_ADDRESS, *[_NUMBER] * 7, *[_ADDRESS] * 2)
    return kernel
