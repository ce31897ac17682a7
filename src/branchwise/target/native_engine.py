"""A decoder as branchwise's own C runs it (`native_decoder/`): weights packed in the order of reading, calls by ctypes.

Knows a `Decoder`, dtypes and addresses; the arithmetic is in C. Knows no lane and no token.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from math import e, log2
from pathlib import Path

import torch
from torch import Tensor

from ..native.kernel import load_kernel
from .decoder_parts import Decoder, Layer, Linear
from .kept_memory import KeptMemory
from .native_packing import Packed, pair_up, stack
from .native_parts import MatrixStruct, NativeParts, NormStruct, paired_bias, stacked_bias
from .protocol import TOP_LOGITS
from .quantised import Quantised
from .quantised_store import FLOATS

DECODER_SOURCES = Path(__file__).with_name("native_decoder")
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
_TABLES = ("cosines", "sines")

_MATRICES = ("qkv", "output", "gate_up", "down")
_NORMS = ("before_attention", "after_attention", "before_mlp", "after_mlp", "query_norm", "key_norm")


class _Layer(ctypes.Structure):
    """`layer` in native_decoder/decoder.c, field by field; so are the others."""

    _fields_ = (
        *((name, MatrixStruct) for name in _MATRICES),
        *((name, NormStruct) for name in _NORMS),
        *((name, ctypes.c_int64) for name in ("table", "window")),
    )


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        ("head", MatrixStruct),
        ("last", NormStruct),
        *((name, ctypes.c_int64) for name in ("count", "hidden", "inner", "heads", "kv_heads", "dim", "activation")),
        ("products", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


_ROWS = (
    *("embedded", "cosines", "sines", "parents", "depth", "tree_begins"),
    *("begins", "committed", "pages", "page_begins", "wanted"),
)


class _Forward(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_ROWS, "pool", "features")),
        *((name, ctypes.c_void_p) for name in ("logits", "top_values", "top_tokens", "work")),
        *((name, ctypes.c_int64) for name in ("work_bytes", "plane_bytes", "page_bytes")),
        *((name, ctypes.c_int64) for name in ("lanes", "wanted_count", "top_count", "threads")),
    )


@dataclass(frozen=True)
class NativeLibrary:
    """The compiled C, if there is a compiler.

    Attributes:
        library: None where there is none.
        reason: why there is none.
    """

    library: ctypes.CDLL | None
    reason: str = ""

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether the processor does, so that weights are worth keeping in less than float32."""
        return self.library is not None and self.library.bfloat16_way() > 0

    @property
    def multiplies_groups(self) -> bool:
        """Whether the processor multiplies whole numbers of 8 bits, so that rounding rows to these is worth while."""
        return self.library is not None and self.library.multiplies_groups() > 0

    def products_for(self, weights: str) -> str:
        """What rows are multiplied in with a format of weights, one of `PRODUCTS`, where nobody says."""
        if self.multiplies_bfloat16:
            return "f32" if weights == "f32" else "bf16"
        return "int8" if weights not in FLOATS and self.multiplies_groups else "f32"

    @property
    def is_fast(self) -> bool:
        """Whether the processor has what the C is written for."""
        return self.multiplies_bfloat16 or self.multiplies_groups


@cache
def native_library() -> NativeLibrary:
    """Compiles it if need be, and loads it; once per process."""
    kernel = load_kernel(DECODER_SOURCES / "decoder.c")
    if kernel.library is not None:
        kernel.library.decode.restype = ctypes.c_int64
    return NativeLibrary(kernel.library, kernel.reason)


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of one forward, lane after lane.

    A tree may have nodes that earlier forwards have run: those come first in it, and their rows are in flight.

    Attributes:
        embedded: float32 ``[T, h]``.
        turns: cosines and sines ``[T, D]`` under "cosines.NAME" and "sines.NAME".
        parents: ``[A]`` of whole trees, numbers within the lane, -1 for roots; like all that follow, C's ints.
        depth: ``[A]``, likewise.
        tree_begins: ``[B + 1]``, where each tree begins in these two.
        begins: ``[B + 1]``, first node of each lane among the T of this forward.
        committed: ``[B]``, committed rows.
        pages: blocks of the cache of all lanes.
        page_begins: ``[B + 1]``, first page of each lane.
        wanted: ``[R]``, nodes that want logits.
    """

    embedded: Tensor
    turns: Mapping[str, Tensor]
    parents: array[int]
    depth: array[int]
    tree_begins: array[int]
    begins: array[int]
    committed: array[int]
    pages: array[int]
    page_begins: array[int]
    wanted: array[int]


class NativeDecoder:
    """One decoder, packed.

    Args:
        library: the compiled C.
        decoder: its parts.
        matrices: quantised, by name; or the dtype that the model's own are kept in.
        products: what numbers are multiplied in, one of `PRODUCTS`.
        threads: CPU threads.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        decoder: Decoder,
        matrices: Mapping[str, Quantised] | torch.dtype,
        *,
        products: str,
        threads: int,
    ) -> None:
        self._library = library
        self._threads = threads
        self._tables = list(decoder.rotary)
        self._matrices = matrices
        self._count = len(decoder.layers)
        self._outputs = len(decoder.head.weight)
        self._top = min(TOP_LOGITS, self._outputs)
        self._parts = NativeParts(
            sum(self._packed(name, linear).packed_bytes for name, linear in decoder.linears()),
            products=products,
        )
        layers = (_Layer * self._count)(*(self._layer(i, layer) for i, layer in enumerate(decoder.layers)))
        first = decoder.layers[0].linears
        self._decoder = _Decoder(
            layers=layers,
            head=self._parts.matrix(self._packed("head", decoder.head), decoder.head.bias),
            last=self._parts.norm(decoder.norm),
            count=self._count,
            hidden=decoder.norm.weight.numel(),
            inner=len(first["gate"].weight),
            heads=decoder.heads,
            kv_heads=decoder.key_heads,
            dim=decoder.width,
            activation=_ACTIVATIONS[decoder.activation],
            products=self._parts.products,
            scale=decoder.scale * log2(e),
        )
        self._work = torch.empty(0, dtype=torch.uint8)
        self._logits = KeptMemory()

    def twin(self) -> NativeDecoder:
        """The same matrices, with memory of its own to work in."""
        twin = copy(self)
        twin._work = torch.empty(0, dtype=torch.uint8)
        twin._logits = KeptMemory()
        return twin

    def run(self, nodes: Nodes, pool: Tensor, feature_layers: Sequence[int] = ()) -> dict[str, Tensor]:
        """One forward.

        Args:
            nodes: its nodes; tensors contiguous.
            pool: keys and values ``[2 L, blocks, K, R, D]``, values turned (`PagedCache`); those of the nodes are
                written.
            feature_layers: hidden states to give.

        Returns:
            "logits" ``[R, V]``, "hidden.i" ``[T, h]``, "top_values" ``[R, k]``, float32, and "top_tokens" ``[R, k]``.

        Raises:
            MemoryError: there is none for so many nodes.
        """
        made = {
            "logits": self._logits.empty(len(nodes.wanted), self._outputs),
            "top_values": torch.empty(len(nodes.wanted), self._top),
            "top_tokens": torch.empty(len(nodes.wanted), self._top, dtype=torch.int64),
            "hidden.0": nodes.embedded,
        }
        made |= {f"hidden.{layer}": torch.empty_like(nodes.embedded) for layer in feature_layers if layer}
        features = [made[f"hidden.{i}"].data_ptr() if i in feature_layers else None for i in range(self._count + 1)]
        tables = [[nodes.turns[f"{which}.{name}"].data_ptr() for name in self._tables] for which in _TABLES]
        cosines, sines = (_addresses(row) for row in tables)
        asked = _addresses(features)
        call = _Forward(
            *(
                nodes.embedded.data_ptr(),
                ctypes.addressof(cosines),
                ctypes.addressof(sines),
                *(row.buffer_info()[0] for row in (nodes.parents, nodes.depth, nodes.tree_begins)),
                *(row.buffer_info()[0] for row in (nodes.begins, nodes.committed)),
                *(row.buffer_info()[0] for row in (nodes.pages, nodes.page_begins, nodes.wanted)),
                pool.data_ptr(),
                ctypes.addressof(asked),
                made["logits"].data_ptr(),
                *(made[name].data_ptr() for name in ("top_values", "top_tokens")),
            ),
            plane_bytes=pool.stride(0) * pool.element_size(),
            page_bytes=pool.stride(1) * pool.element_size(),
            lanes=len(nodes.committed),
            wanted_count=len(nodes.wanted),
            top_count=self._top,
            threads=self._threads,
        )
        while True:
            call.work, call.work_bytes = self._work.data_ptr(), self._work.numel()
            lacking = self._library.decode(ctypes.byref(self._decoder), ctypes.byref(call))
            if lacking <= 0:
                break
            self._work = torch.empty(lacking + lacking // 4, dtype=torch.uint8)
        if lacking:
            raise MemoryError(f"no memory for a forward of {len(nodes.embedded)} nodes")
        return made

    def move(self, pool: Tensor, sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> None:
        """Moves rows of all layers, one after another; places are a block and a row in it, as in `PagedCache`."""
        moves = [number for pair in zip(sources, targets, strict=True) for place in pair for number in place]
        self._library.move_rows(
            ctypes.byref(self._decoder),
            ctypes.c_void_p(pool.data_ptr()),
            (ctypes.c_int32 * len(moves))(*moves),
            *map(ctypes.c_int64, (len(sources), *(stride * pool.element_size() for stride in pool.stride()[:2]))),
        )

    # structures

    def _layer(self, index: int, layer: Layer) -> _Layer:
        linears = layer.linears
        packed = {role: self._packed(f"layers.{index}.{role}", linear) for role, linear in linears.items()}
        return _Layer(
            qkv=self._parts.matrix(
                stack([packed[role] for role in ("query", "key", "value")]),
                stacked_bias([linears[role] for role in ("query", "key", "value")]),
            ),
            output=self._parts.matrix(packed["output"], linears["output"].bias),
            gate_up=self._parts.matrix(
                pair_up(packed["gate"], packed["up"]), paired_bias(linears["gate"], linears["up"])
            ),
            down=self._parts.matrix(packed["down"], linears["down"].bias),
            **{name: self._parts.norm(getattr(layer, name)) for name in _NORMS},
            table=-1 if layer.rotary is None else self._tables.index(layer.rotary),
            window=layer.window or 0,
        )

    def _packed(self, name: str, linear: Linear) -> Packed:
        if isinstance(self._matrices, torch.dtype):
            return Packed.of(linear.weight.to(self._matrices))
        return Packed.of(self._matrices[name])


def _addresses(row: Sequence[int | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(row)))(*row)
