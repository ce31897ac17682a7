"""This machine as `Hardware`: every kind of work timed by itself, no forward of the model that is planned for.

    limits        reading memory and multiplying matrices, as `branchwise bench forward` measures them
    linear        one linear layer after the other, 256 MB of weights in turn, at several numbers of rows
    attention     this library's own, one node over a long context, and many nodes
    small         a norm as transformers writes it
    launch        a tiny Llama of two depths: the difference is a layer's, the rest a forward's

Needs a quiet machine; the least of several times counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from ..bench.attention_calls import Shape
from ..bench.limits import Limits, dtype_name, measure_limits, seconds_of
from ..bench.provenance import cpu_model
from ..bench.roofline import measure as measure_attention
from ..bench.roofline_forward import fill
from ..target.huggingface import HuggingFaceTarget
from ..tree import TokenTree
from .forward_cost import TRAFFIC
from .hardware import Hardware, LinearPoint, Measured

#: rows of linear layers that are timed; none is a size that `check` asks for, but the lone root
ROWS = (1, 3, 6, 12, 24, 48, 96, 192, 384)
#: side of their matrices, and weights that take turns, so that none is found in a cache
_SIDE, _ROTATED_BYTES = 1024, 2**28
_REPEATS = 5
#: depths of the tiny models
_DEPTHS = (2, 14)


def measure_hardware(
    device: torch.device, dtype: torch.dtype, progress: Callable[[str], None] = lambda line: None
) -> Hardware:
    """Measures this machine, with torch's current number of threads.

    Args:
        device: where.
        dtype: of everything.
        progress: is told what is being done.
    """
    limits = measure_limits((dtype,), device)
    with torch.no_grad():
        progress("linear layers")
        points = _linear_points(dtype, device)
        progress("attention")
        kv_rate, attention_rate = _attention_rates(limits, dtype, device)
        progress("small operations")
        small = _small_rate(dtype, device)
    progress("layers of a tiny model")
    layer, forward = _launch_seconds(dtype, device)
    name = dtype_name(dtype)
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model() or "this processor"
    return Hardware(
        name=f"this machine ({processor}, {torch.get_num_threads()} threads)",
        memory_bytes=_memory_bytes(device),
        bytes_per_second=limits.bytes_per_second,
        operations_per_second=limits.operations_per_second,
        bandwidth_share=1.0,
        arithmetic_share=1.0,
        kernel_seconds={"eager": 0.0},
        overlaps_launch=device.type == "cuda",
        link=None,
        sources=(f"measured here, torch {torch.__version__}, {name}",),
        measured=Measured(name, points, kv_rate, attention_rate, small, layer, forward),
    )


def _linear_points(dtype: torch.dtype, device: torch.device) -> tuple[LinearPoint, ...]:
    size = _SIDE * _SIDE * dtype.itemsize
    weights = [torch.randn(_SIDE, _SIDE, device=device).to(dtype) for _ in range(_ROTATED_BYTES // size)]
    points: list[LinearPoint] = []
    slowest = 0.0
    for rows in ROWS:
        inputs = torch.randn(1, rows, _SIDE, device=device).to(dtype)

        def turn(inputs: torch.Tensor = inputs) -> None:
            for weight in weights:
                linear(inputs, weight)

        # more rows never cost less: what a measurement says against that is noise
        slowest = max(slowest, seconds_of(turn, device, _REPEATS) / (len(weights) * size))
        points.append(LinearPoint(rows, slowest))
    return tuple(points)


def _attention_rates(limits: Limits, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Bytes per second of keys and values for one node, operations per second for many."""
    one, many = Shape(12, 4, 64, 1, 4096, dtype), Shape(12, 4, 64, 24, 1024, dtype)
    seconds = {
        shape: measure_attention(shape, ("auto",), limits, device, 2 * _REPEATS)["ways"]["auto"]["best_ms"] / 1000
        for shape in (one, many)
    }
    return one.read_bytes / seconds[one], many.operations / seconds[many]


def _small_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Bytes per second, counted as `TRAFFIC` counts the two norms of a layer."""
    rows, width = 128, 1024
    states, weight = torch.randn(1, rows, width, device=device).to(dtype), torch.ones(width, device=device).to(dtype)

    def norm() -> torch.Tensor:
        wide = states.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)

    elements = rows * width * (TRAFFIC["eager"].hidden - _RESIDUALS) / 2
    return elements * dtype.itemsize / seconds_of(norm, device, 4 * _REPEATS)


#: elements per width of the hidden states in `TRAFFIC` that are no norm's
_RESIDUALS = 8


def _launch_seconds(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Seconds of a layer and of the rest of a forward, both of a model that has nothing to read or multiply."""
    few, many = (_tiny_forward(depth, dtype, device) for depth in _DEPTHS)
    layer = max(0.0, (many - few) / (_DEPTHS[1] - _DEPTHS[0]))
    return layer, max(0.0, few - _DEPTHS[0] * layer)


def _tiny_forward(layers: int, dtype: torch.dtype, device: torch.device) -> float:
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=128,
    )
    target = HuggingFaceTarget(LlamaForCausalLM(config).to(device, dtype).eval())
    lane = fill(target, 16)
    tree = TokenTree((0,), (-1,))

    def forward() -> None:
        target.forward({lane: tree})
        target.rollback()

    return seconds_of(forward, device, 4 * _REPEATS)


def _memory_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
