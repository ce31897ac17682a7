"""Linear layers of an OpenVINO graph, over the memory of torch tensors: floating point, or whole numbers and scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov
import torch
from openvino import opset15 as ops
from torch import Tensor

from .decoder_parts import Linear
from .openvino_tensors import constant, int_constant
from .quantised import GROUP, Quantised

Node = Any
"""A node or an output of one, as the operations take them."""


class Linears:
    """Makes the nodes of linear layers.

    Args:
        matrices: quantised, by name; or the dtype that the given weights are multiplied in.

    Attributes:
        keeps: tensors whose memory the nodes share; they must live as long as the graph.
    """

    def __init__(self, matrices: Mapping[str, Quantised] | torch.dtype) -> None:
        self.keeps: list[Tensor] = []
        self._matrices = matrices

    def node(self, name: str, linear: Linear, x: Node) -> Node:
        """``x @ weight.T + bias``."""
        if isinstance(self._matrices, torch.dtype):
            weight = self._constant(linear.weight.to(self._matrices))
            weight = weight if self._matrices is torch.float32 else ops.convert(weight, "f32")
        else:
            weight = self._unpacked(self._matrices[name])
        made = ops.matmul(x, weight, False, True)
        return made if linear.bias is None else ops.add(made, self._constant(linear.bias))

    def _unpacked(self, q: Quantised) -> Node:
        """The pattern that the engine knows as a compressed weight: convert, subtract, multiply, reshape."""
        rows, groups = q.scale.shape
        if q.bits == 8:
            # a whole zero in as many bits as the values lets the engine multiply in whole numbers
            values = self._constant(q.values)
            zero = ops.convert(self._constant(q.zero.to(torch.uint8)), "f32")
            return ops.multiply(ops.subtract(ops.convert(values, "f32"), zero), self._constant(q.scale))
        values = self._constant(q.values, ov.Type.u4, [rows, groups, GROUP])
        zero, scale = (self._constant(part[:, :, None]) for part in (q.zero, q.scale))
        unpacked = ops.multiply(ops.subtract(ops.convert(values, "f32"), zero), scale)
        return ops.reshape(unpacked, int_constant([rows, groups * GROUP]), False)

    def _constant(self, tensor: Tensor, kind: ov.Type | None = None, shape: Sequence[int] | None = None) -> Node:
        tensor = tensor.contiguous()
        self.keeps.append(tensor)
        return constant(tensor, kind, shape)
