"""Matrices and norms as structures in C, and the memory that they point into; for decoders, and for heads on them.

Knows tensors and addresses; knows no layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .decoder_parts import Linear, Norm
from .native_packing import BLOCK, Packed, Shelf, pack

#: what numbers are multiplied in, as native_decoder/linear.h numbers it
PRODUCTS = ("f32", "bf16", "int8")


class MatrixStruct(ctypes.Structure):
    """`matrix` in native_decoder/linear.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "scale", "zero", "bias")),
        *((name, ctypes.c_int64) for name in ("format", "strips", "steps", "outputs")),
    )


class NormStruct(ctypes.Structure):
    """`norm` in native_decoder/rows.h."""

    _fields_ = (("weight", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class NativeParts:
    """Makes structures, and keeps what they point into for as long as it lives.

    Args:
        packed_bytes: room for the matrices, which lie one after another in the order in which they are made.
        products: what they are multiplied in, one of `PRODUCTS`.
    """

    def __init__(self, packed_bytes: int, *, products: str) -> None:
        #: the number of `products`
        self.products = PRODUCTS.index(products)
        self._broadcast = products != "bf16"
        self._keeps: list[Tensor] = []
        self._shelf = Shelf(packed_bytes)

    def matrix(self, packed: Packed, bias: Tensor | None) -> MatrixStruct:
        """A matrix and the bias of its outputs."""
        values = self._shelf.put(pack(packed, broadcast=self._broadcast))
        return MatrixStruct(
            values=self.kept(values),
            scale=self.kept(packed.per_output("scale")),
            zero=self.kept(packed.per_output("zero")),
            bias=None if bias is None else self.kept(packed.padded(bias)),
            format=packed.format,
            strips=values.shape[0],
            steps=values.shape[1],
            outputs=packed.outputs,
        )

    def norm(self, norm: Norm | None) -> NormStruct:
        """A norm, or none."""
        return NormStruct(None, 0.0) if norm is None else NormStruct(self.kept(norm.weight), norm.epsilon)

    def kept(self, tensor: Tensor | None) -> int | None:
        """The address of a tensor's numbers."""
        if tensor is None:
            return None
        self._keeps.append(tensor.contiguous())
        return self._keeps[-1].data_ptr()


def stacked_bias(linears: Sequence[Linear]) -> Tensor | None:
    """Of outputs one after another, see `native_packing.stack`."""
    if all(linear.bias is None for linear in linears):
        return None
    return torch.cat([_bias(linear) for linear in linears])


def paired_bias(gate: Linear, up: Linear) -> Tensor | None:
    """Of outputs that take turns, see `native_packing.pair_up`."""
    if gate.bias is None and up.bias is None:
        return None
    short = -len(gate.weight) % BLOCK
    halves = [torch.nn.functional.pad(_bias(linear), (0, short)).view(-1, BLOCK) for linear in (gate, up)]
    return torch.stack(halves, dim=1).flatten()


def _bias(linear: Linear) -> Tensor:
    return torch.zeros(len(linear.weight)) if linear.bias is None else linear.bias
