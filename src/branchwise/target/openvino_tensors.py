"""Torch tensors as OpenVINO tensors over the same memory, and the small nodes that every graph needs.

Nothing is copied: whoever makes a view keeps the torch tensor alive as long as it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset15 as ops
from openvino.op import Constant
from torch import Tensor

_KINDS = {
    torch.float32: ov.Type.f32,
    torch.bfloat16: ov.Type.bf16,
    torch.float16: ov.Type.f16,
    torch.int32: ov.Type.i32,
    torch.uint8: ov.Type.u8,
}


def shared(tensor: Tensor, kind: ov.Type | None = None, shape: Sequence[int] | None = None) -> ov.Tensor:
    """A view of a contiguous tensor.

    Args:
        tensor: float32, bfloat16, float16, int32 or uint8.
        kind: what its bytes mean, where that is not its dtype (four-bit numbers).
        shape: likewise.
    """
    kind = _KINDS[tensor.dtype] if kind is None else kind
    shape = list(tensor.shape) if shape is None else list(shape)
    if 0 in shape:
        return ov.Tensor(kind, ov.Shape(shape))
    if tensor.dtype in (torch.bfloat16, torch.float16):  # numpy knows no bfloat16; the bytes are what counts
        tensor = tensor.view(torch.int16)
    return ov.Tensor(tensor.numpy(), ov.Shape(shape), kind)


def constant(tensor: Tensor, kind: ov.Type | None = None, shape: Sequence[int] | None = None) -> Any:
    """A constant over the tensor's memory; see `shared`."""
    return Constant(shared(tensor, kind, shape), shared_memory=True)


def int_constant(value: int | Sequence[int]) -> Any:
    """Axes and shapes."""
    return ops.constant(np.array(value, dtype=np.int64))


def float_constant(value: float) -> Any:
    """A scalar."""
    return ops.constant(np.array(value, dtype=np.float32))


def parameter(name: str, kind: ov.Type, shape: Sequence[int]) -> Any:
    """An input; -1 stands for a length that differs from forward to forward."""
    made = ops.parameter(ov.PartialShape(list(shape)), kind)
    made.set_friendly_name(name)
    made.output(0).get_tensor().set_names({name})
    return made


def named(node: Any, name: str) -> Any:
    """An output."""
    made = ops.result(node)
    made.output(0).get_tensor().set_names({name})
    return made
