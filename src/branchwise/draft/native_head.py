"""An EAGLE head as branchwise's own C runs it (`native_head/`): weights packed in the order of reading.

Knows an `EagleHead`, formats and addresses; the arithmetic is in C, compiled on first use (`native.kernel`) and called
by ctypes. Every layout that `EagleConfig` knows has its place there. Knows no lane: the caller says where rows lie.

Weights are a copy of the head's: those of a head that is being trained would be old at once, so such a head stays with
torch, as one does on a GPU, in float64, or without a compiler.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from math import e, log2
from pathlib import Path

import torch
from torch import Tensor, nn

from ..attention.native import NATIVE_DTYPES, NATIVE_SOURCES, NativeUnavailable
from ..native.kernel import load_kernel
from ..target.decoder_parts import Linear, Norm
from ..target.native_engine import DECODER_SOURCES, NativeLibrary
from ..target.native_packing import Packed, pair_up, stack
from ..target.native_parts import MatrixStruct, NativeParts, NormStruct, paired_bias, stacked_bias
from ..target.quantised import check_weights, quantise
from .eagle_head import EagleHead, HeadLayer
from .head_lanes import Candidates
from .top_native import TOP_SOURCES

_SOURCES = Path(__file__).with_name("native_head")
#: most candidates of a node
MOST_CANDIDATES = 64
#: positions that the rotary tables grow by
_POSITIONS = 1024
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

_MATRICES = ("qkv", "output", "gate_up", "down")
_NORMS = ("of_embedding", "of_hidden", "before_mlp", "query_norm", "key_norm")
_WHOLE = ("fuse", "join", "beside", "rows")
_SIZES = (
    "count",
    "hidden",
    "features",
    "feature_width",
    "inner",
    "heads",
    "kv_heads",
    "dim",
    "page_rows",
    "products",
    "deep",
)
_TABLES = ("tokens", "positions", "continued")
_LANES = ("begins", "committed", "flights", "parents", "pages", "page_begins", "wanted")


class _Layer(ctypes.Structure):
    """`layer` in native_head/head.c, field by field; so are the others."""

    _fields_ = (
        *((name, MatrixStruct) for name in _MATRICES),
        *((name, NormStruct) for name in _NORMS),
        ("keeps_normed", ctypes.c_int64),
    )


class _Head(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        *((name, MatrixStruct) for name in _WHOLE),
        *((name, NormStruct) for name in ("together", "last")),
        ("each", ctypes.POINTER(NormStruct)),
        ("embedding", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("embedding_dtype", *_SIZES, "goes_on_normed")),
        ("scale", ctypes.c_float),
    )


class _Forward(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_TABLES, "given", *_LANES, "pool", "states", "cosines", "sines")),
        *((name, ctypes.c_void_p) for name in ("logp", "found", "work")),
        *((name, ctypes.c_int64) for name in ("work_bytes", "plane_bytes", "page_bytes", "lanes", "wanted_count", "k")),
        *((name, ctypes.c_int64) for name in ("given_dtype", "threads")),
    )


@cache
def head_library() -> NativeLibrary:
    """Compiles it if need be, and loads it; once per process."""
    kernel = load_kernel(_SOURCES / "head.c", NATIVE_SOURCES, DECODER_SOURCES, TOP_SOURCES)
    if kernel.library is not None:
        kernel.library.run_head.restype = ctypes.c_int64
    return NativeLibrary(kernel.library, kernel.reason)


def best_weights() -> str:
    """The format in which heads draft fastest here.

    Half the bytes take less time than the few drafts that are lost by it (docs/log.md, 2026-12-01); but numbers of 4
    bits are multiplied as they lie only where rows are rounded to 8.
    """
    return "int4" if head_library().products_for("int4") == "int8" else "int8"


def why_not_native(head: EagleHead) -> str | None:
    """What keeps a head from this engine; None where nothing does."""
    places = {(weight.device.type, weight.dtype) for weight in (head.fc.weight, head.embedding, head.output[0])}
    if strange := [f"{dtype} on {device}" for device, dtype in places if device != "cpu" or dtype not in NATIVE_DTYPES]:
        return f"it computes float32, bfloat16 and float16 on a CPU, and the head has {strange[0]}"
    if any(parameter.requires_grad for parameter in head.parameters()):
        return "the head is being trained"
    if head_library().library is None:
        return head_library().reason
    return None


class NativeHead:
    """One head, packed.

    Args:
        head: the head; it must have borrowed what it lacks. Embeddings are read where they lie.
        page_rows: rows of a block of the cache.
        weights: "bf16", "int8", "int4" or, for exact comparisons, "f32", which is multiplied in float32; None for
            `best_weights`. Where the matrix unit multiplies bytes, "int8" also rounds what was normalised to 8 bits,
            with a scale per row; the matrices that read other rows (fc, down) are then kept in bfloat16. Where nothing
            multiplies bfloat16, quantised weights are multiplied with rows in 8 bits, with a scale for 32 numbers.

    Raises:
        NativeUnavailable: see `why_not_native`.
        ValueError: there is no such format.
    """

    def __init__(self, head: EagleHead, *, page_rows: int, weights: str | None = None) -> None:
        if weights is not None:
            check_weights(weights)
        reason = why_not_native(head)
        if reason is not None:
            raise NativeUnavailable(f"the engine 'native' cannot run this head: {reason}; use engine='torch'")
        weights = best_weights() if weights is None else weights
        self.head = head
        self.weights = weights
        products = head_library().products_for(weights)
        #: of the rows in the cache
        self.dtype = _DTYPES["bf16" if products == "bf16" else "f32"]
        config = head.config
        self._target_ids = None if head.target_ids is None else head.target_ids.tolist()
        self._library = head_library().library
        assert self._library is not None, "who has no reason has a library"
        self._in_digits = weights == "int8" and self._library.multiplies_digits() > 0
        self._parts = NativeParts(_room(head, 4 if weights == "f32" else 2), products=products)
        layers = [self._layer(layer) for layer in head.layers if isinstance(layer, HeadLayer)]
        each = [self._norm(norm) for norm in head.fc_norm or () if isinstance(norm, nn.RMSNorm)]
        fuse = self._matrix(head.fc)
        self._embedding = head.embedding.contiguous()
        self._head = _Head(
            layers=(_Layer * len(layers))(*layers),
            fuse=fuse if config.version == 3 else MatrixStruct(),
            join=fuse if config.version == 1 else MatrixStruct(),
            beside=MatrixStruct() if head.embedding_residual is None else self._matrix(head.embedding_residual, True),
            rows=self._parts.matrix(self._packed(head.output[0], head.norm is not None), _floats(head.output[1])),
            together=self._norm(head.input_norm),
            last=self._norm(head.norm),
            each=(NormStruct * len(each))(*each) if each else None,
            embedding=self._embedding.data_ptr(),
            embedding_dtype=NATIVE_DTYPES[self._embedding.dtype],
            count=len(layers),
            hidden=config.hidden_size,
            features=config.features,
            feature_width=config.target_hidden_size,
            inner=config.intermediate_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            dim=config.head_dim,
            page_rows=page_rows,
            products=self._parts.products,
            deep=head.choices(1),
            goes_on_normed=config.norm_output,
            scale=config.head_dim**-0.5 * log2(e),
        )
        # sizes and addresses beside the tensors: to ask those takes longer than the rest of a call
        self._work, self._work_bytes = torch.empty(0, dtype=torch.uint8), 0
        self._turns, self._positions, self._turn_places = torch.empty(0), 0, (0, 0)
        self._states, self._state_rows = torch.empty(0, config.hidden_size), 0

    def run(
        self, tables: Mapping[str, Sequence[int]], pool: Tensor, features: Tensor | None = None, wanted: int = 0
    ) -> list[Candidates]:
        """One forward; the hidden states of the wanted rows stay, for the next.

        Args:
            tables: int32 numbers by name, see `forward` in head.c. Without features, rows go on from those states
                of the forward before that "continued" names.
            pool: keys and values ``[2 L, blocks, K, R, D]``; those of the rows are written.
            features: ``[T, F * h_t]`` of committed rows.
            wanted: candidates of every row in ``tables["wanted"]``, at most `MOST_CANDIDATES`.

        Returns:
            the candidates of those rows, likeliest first; NaN in a row without probabilities.

        Raises:
            MemoryError: there is none for so many rows.
        """
        rows = len(tables["wanted"])
        self._reach(max(tables["positions"]), rows)
        flat, places = array("i"), {}
        for name, table in tables.items():
            places[name] = len(flat)
            flat.extend(table)
        start = flat.buffer_info()[0]
        logp, found = array("f", bytes(4 * rows * wanted)), array("q", bytes(8 * rows * wanted))
        call = _Forward(
            **{name: start + 4 * at for name, at in places.items()},
            pool=pool.data_ptr(),
            states=self._states.data_ptr(),
            cosines=self._turn_places[0],
            sines=self._turn_places[1],
            logp=logp.buffer_info()[0],
            found=found.buffer_info()[0],
            plane_bytes=pool.stride(0) * pool.element_size(),
            page_bytes=pool.stride(1) * pool.element_size(),
            lanes=len(tables["committed"]),
            wanted_count=rows,
            k=wanted,
            threads=torch.get_num_threads(),
        )
        if features is not None:
            features = features.contiguous()
            call.given, call.given_dtype = features.data_ptr(), NATIVE_DTYPES[features.dtype]
        self._call(call)
        if not rows:
            return []
        ids = found if self._target_ids is None else map(self._target_ids.__getitem__, found)
        pairs = list(zip(ids, logp, strict=True))
        return [pairs[at : at + wanted] for at in range(0, len(pairs), wanted)]

    def _call(self, call: _Forward) -> None:
        assert self._library is not None
        while True:
            call.work, call.work_bytes = self._work.data_ptr(), self._work_bytes
            lacking = self._library.run_head(ctypes.byref(self._head), ctypes.byref(call))
            if lacking <= 0:
                break
            self._work_bytes = lacking + lacking // 4
            self._work = torch.empty(self._work_bytes, dtype=torch.uint8)
        if lacking:
            raise MemoryError("no memory for a forward of the head")

    def _reach(self, position: int, rows: int) -> None:
        """Makes the tables of cosines and sines reach as far, and room for the hidden states of so many rows."""
        if position >= self._positions:
            self._positions = _POSITIONS * (1 + position // _POSITIONS)
            halves = self.head.rotary.tables(torch.arange(self._positions), torch.float32)
            self._turns = torch.stack([torch.cat((half, half), dim=1) for half in halves])  # [2, positions, D]
            self._turn_places = (self._turns[0].data_ptr(), self._turns[1].data_ptr())
        if rows > self._state_rows:
            grown = torch.zeros(2 * rows, self.head.config.hidden_size)
            grown[: self._state_rows] = self._states
            self._states, self._state_rows = grown, 2 * rows

    # structures

    def _layer(self, layer: HeadLayer) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        hidden = layer.hidden_norm if layer.reads_embeddings else layer.input_layernorm
        reads_normed = hidden is not None
        three = [attention.q_proj, attention.k_proj, attention.v_proj]
        return _Layer(
            qkv=self._parts.matrix(
                stack([self._packed(linear.weight, reads_normed) for linear in three]),
                stacked_bias([_linear(x) for x in three]),
            ),
            output=self._matrix(attention.o_proj, True),
            gate_up=self._parts.matrix(
                pair_up(self._packed(mlp.gate_proj.weight, True), self._packed(mlp.up_proj.weight, True)),
                paired_bias(_linear(mlp.gate_proj), _linear(mlp.up_proj)),
            ),
            down=self._matrix(mlp.down_proj),
            of_embedding=self._norm(layer.input_layernorm if layer.reads_embeddings else None),
            of_hidden=self._norm(hidden),
            before_mlp=self._norm(layer.post_attention_layernorm),
            query_norm=self._norm(attention.q_norm),
            key_norm=self._norm(attention.k_norm),
            keeps_normed=layer.reads_embeddings and layer.norm_before_residual,
        )

    def _packed(self, weight: Tensor, even: bool = False) -> Packed:
        """A matrix as it is kept.

        Args:
            weight: ``[O, I]``.
            even: whether the rows it reads have no numbers far larger than the others.
        """
        if self.weights in _DTYPES:
            return Packed.of(weight.detach().to(_DTYPES[self.weights]))
        if not self._in_digits or even:
            packed = Packed.of(quantise(weight.detach(), self.weights))
            return packed.in_digits() if self._in_digits else packed
        return Packed.of(weight.detach().bfloat16())

    def _matrix(self, linear: nn.Linear, even: bool = False) -> MatrixStruct:
        return self._parts.matrix(self._packed(linear.weight, even), _floats(linear.bias))

    def _norm(self, norm: nn.RMSNorm | None) -> NormStruct:
        if norm is None:
            return NormStruct(None, 0.0)
        assert norm.eps is not None
        return self._parts.norm(Norm(norm.weight.detach().float(), norm.eps))


def _room(head: EagleHead, item_bytes: int) -> int:
    """Bytes of all matrices at most: strips of 32 outputs, of which a matrix in two parts may waste one more."""
    weights = [m.weight for m in head.modules() if isinstance(m, nn.Linear) and m is not head.lm_head]
    shapes = [weight.shape for weight in (*weights, head.output[0])]
    return sum((outputs + 64) * (inputs + 63) * item_bytes for outputs, inputs in shapes)


def _floats(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().float()


def _linear(linear: nn.Linear) -> Linear:
    return Linear(linear.weight, _floats(linear.bias))
