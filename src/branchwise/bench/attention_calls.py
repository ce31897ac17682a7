"""One attention call in many ways: this library's backends, and what others offer for the same tree.

    NAME          a backend of this library, see `backend_names`
    sdpa          torch's scaled_dot_product_attention with a boolean mask and keys and values repeated to all heads, as
                  transformers does it
    flashinfer    FlashInfer's single-request kernel with a packed custom mask (a GPU, and the package)

A way is prepared once per tree (masks, bit words, a plan) and then called with keys and values that change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..attention import TreeLayout, backend_names, get_backend
from ..attention.native import native
from ..attention.triton_backend import has_triton
from ..tree import TokenTree, kary_shape

#: a prepared way: key and value in, output ``[1, H, N, D]`` out
Call = Callable[[Tensor, Tensor], Tensor]
OTHERS = ("sdpa", "flashinfer")


@dataclass(frozen=True)
class Shape:
    """One call of tree attention.

    Attributes:
        heads: H.
        kv_heads: K.
        dim: width D of keys and values.
        nodes: N.
        context: committed tokens S.
        dtype: of everything.
    """

    heads: int
    kv_heads: int
    dim: int
    nodes: int
    context: int
    dtype: torch.dtype

    @property
    def read_bytes(self) -> int:
        """Keys and values once, queries in and outputs out."""
        rows = 2 * self.kv_heads * (self.context + self.nodes) + 2 * self.heads * self.nodes
        return rows * self.dim * self.dtype.itemsize

    @property
    def operations(self) -> int:
        """Multiplications and additions of both products."""
        return 4 * self.heads * self.nodes * (self.context + self.nodes) * self.dim

    def tree(self) -> TokenTree:
        """A binary tree of N nodes, breadth-first."""
        return TokenTree([0] * self.nodes, kary_shape((2,) * self.nodes.bit_length())[: self.nodes])

    def query(self, device: torch.device) -> Tensor:
        """Strided as a model hands it over: ``[1, H, N, D]``."""
        return torch.randn(1, self.nodes, self.heads, self.dim, dtype=self.dtype, device=device).transpose(1, 2)

    def rows(self, device: torch.device) -> Tensor:
        """Keys or values as a preallocated cache hands them over: ``[1, K, S + N, D]``."""
        used = self.context + self.nodes
        buffer = torch.randn(1, self.kv_heads, used + 64, self.dim, dtype=self.dtype, device=device)
        return buffer[:, :, :used]


def prepare(way: str, shape: Shape, query: Tensor) -> Call:
    """The way called ``way``, ready for keys and values.

    Raises:
        ValueError: no such way.
        ImportError: it needs a package that is missing.
    """
    layout = TreeLayout.from_trees(shape.tree(), device=query.device)
    scale = shape.dim**-0.5
    if way == "sdpa":
        return _sdpa(shape, query, layout, scale)
    if way == "flashinfer":
        return _flashinfer(shape, query, layout, scale)
    if way not in backend_names() and way != "auto":
        raise ValueError(
            f"no way of attention is named {way!r}; there are auto, {', '.join((*backend_names(), *OTHERS))}"
        )
    backend = get_backend(way)
    return lambda key, value: backend(query, key, value, layout, (shape.context,), scale=scale)


def default_ways(device: torch.device) -> tuple[str, ...]:
    """What is worth comparing on a device, of what is installed."""
    if device.type != "cuda":
        return (*(("native",) if native().library is not None else ()), "folded", "sdpa")
    found = ("triton",) if has_triton() else ()
    return (*found, "flex", "folded", "sdpa", *(("flashinfer",) if find_spec("flashinfer") is not None else ()))


def _sdpa(shape: Shape, query: Tensor, layout: TreeLayout, scale: float) -> Call:
    mask = layout.mask((shape.context,), shape.context)[:, None]  # [1, 1, N, S + N]
    group = shape.heads // shape.kv_heads

    def call(key: Tensor, value: Tensor) -> Tensor:
        if group > 1:
            key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)

    return call


def _flashinfer(shape: Shape, query: Tensor, layout: TreeLayout, scale: float) -> Call:
    try:
        import flashinfer
    except ImportError:
        raise ImportError("the way 'flashinfer' needs the package flashinfer-python") from None
    mask = layout.mask((shape.context,), shape.context)[0]  # [N, S + N]
    packed = flashinfer.packbits(mask.reshape(-1).contiguous(), bitorder="little")
    rows_first = query[0].transpose(0, 1).contiguous()  # [N, H, D]

    def call(key: Tensor, value: Tensor) -> Tensor:
        out = flashinfer.single_prefill_with_kv_cache(
            rows_first, key[0], value[0], packed_custom_mask=packed, kv_layout="HND", sm_scale=scale
        )
        return out.transpose(0, 1)[None]  # [N, H, D] -> [1, H, N, D]

    return call
