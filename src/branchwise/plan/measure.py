"""This machine as `Hardware`: every kind of work timed by itself, no forward of the model that is planned for.

    limits        reading memory and multiplying matrices, as `branchwise bench forward` measures them
    attention     this library's own, one node over a long context, and many nodes
    small         a norm as transformers writes it
    launch        a tiny Llama of two depths: the difference is a layer's, the rest a forward's
    linear        on a CPU an invented Llama with random weights at several numbers of rows: what its forward takes
                  beyond the above, per byte of its weights. In place, because layers that follow each other find
                  neither weights nor code in a cache, as one layer timed over and over does. On a GPU, where a small
                  model's forward is all launch, single large layers that take turns

Needs a quiet machine; the least of several times counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from ..bench.attention_calls import Shape
from ..bench.limits import Limits, dtype_name, measure_limits, seconds_of
from ..bench.provenance import cpu_model
from ..bench.roofline import measure as measure_attention
from ..bench.roofline_forward import fill
from ..target.huggingface import HuggingFaceTarget
from ..tree import TokenTree, kary_shape
from .forward_cost import TRAFFIC, ForwardCost, Lanes
from .hardware import Hardware, LinearPoint, Measured
from .model_config import shape_of

#: rows of linear layers that are timed; none is a size that `check` asks for, but the lone root
ROWS = (1, 3, 6, 12, 24, 48, 96, 192, 384)
#: sizes of the tiny models, and their depths
_TINY = {"hidden_size": 64, "intermediate_size": 64, "heads": (2, 1, 32), "vocab_size": 128}
_DEPTHS = (2, 14)
#: sizes of the model whose linear layers are timed
_INVENTED = {"hidden_size": 768, "intermediate_size": 2048, "heads": (12, 4, 64), "vocab_size": 16384}
_INVENTED_DEPTH = 8
#: side of the matrices of single layers
_SIDE = 8192
_CONTEXT = 16
_REPEATS = 5
#: elements per width of the hidden states in `TRAFFIC` that are no norm's
_RESIDUALS = 8


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
        progress("attention")
        kv_rate, attention_rate = _attention_rates(limits, dtype, device)
        progress("small operations")
        small = _small_rate(dtype, device)
    progress("layers of a tiny model")
    layer, forward = _launch_seconds(dtype, device)
    name = dtype_name(dtype)
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model() or "this processor"
    # linear layers for nothing: what they take is what is left of the invented model's forwards
    free = Measured(name, (LinearPoint(1, 1e-30),), kv_rate, attention_rate, small, layer, forward)
    hardware = Hardware(
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
        measured=free,
    )
    progress("linear layers")
    return replace(hardware, measured=replace(free, linear=_linear_points(hardware, dtype, device)))


def _linear_points(hardware: Hardware, dtype: torch.dtype, device: torch.device) -> tuple[LinearPoint, ...]:
    seconds = _layers_alone(dtype, device) if hardware.overlaps_launch else _layers_in_place(hardware, dtype, device)
    # fewer rows never cost more, and a hiccup of the machine only adds; but reading takes what it takes
    least = accumulate(reversed(seconds), min)
    floor = 1 / hardware.bytes_per_second
    points = [LinearPoint(rows, max(floor, per_byte)) for rows, per_byte in zip(reversed(ROWS), least, strict=True)]
    return tuple(reversed(points))


def _layers_in_place(hardware: Hardware, dtype: torch.dtype, device: torch.device) -> list[float]:
    """Seconds per byte by `ROWS`: forwards of the invented model, without what else is in them."""
    model = _llama(_INVENTED, _INVENTED_DEPTH, dtype, device)
    cost = ForwardCost(shape_of(model, "an invented model"), hardware, dtype_name(dtype), "eager")
    shape = cost.shape
    read = (shape.matrix_parameters + shape.vector_parameters + shape.head_parameters) * dtype.itemsize
    target = HuggingFaceTarget(model)
    lane = fill(target, _CONTEXT)
    return [
        (_forward_seconds(target, lane, rows, 2 * _REPEATS) - cost.seconds([Lanes(rows, _CONTEXT)]).total) / read
        for rows in ROWS
    ]


@torch.no_grad()
def _layers_alone(dtype: torch.dtype, device: torch.device) -> list[float]:
    """Seconds per byte by `ROWS`: layers so large that starting them does not count, and too large for a cache."""
    weights = [torch.randn(_SIDE, _SIDE, device=device).to(dtype) for _ in range(4)]
    found = []
    for rows in ROWS:
        inputs = torch.randn(1, rows, _SIDE, device=device).to(dtype)

        def turn(inputs: torch.Tensor = inputs) -> None:
            for weight in weights:
                linear(inputs, weight)

        found.append(seconds_of(turn, device, _REPEATS) / sum(weight.nbytes for weight in weights))
    return found


def _attention_rates(limits: Limits, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Bytes per second of keys and values for one node, operations per second for many."""
    one, many = Shape(12, 4, 64, 1, 4096, dtype), Shape(12, 4, 64, 24, 1024, dtype)
    seconds = {
        shape: measure_attention(shape, ("auto",), limits, device, 4 * _REPEATS)["ways"]["auto"]["best_ms"] / 1000
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


def _launch_seconds(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Seconds of a layer and of the rest of a forward, both of a model that has nothing to read or multiply."""
    times = []
    for depth in _DEPTHS:
        target = HuggingFaceTarget(_llama(_TINY, depth, dtype, device))
        times.append(_forward_seconds(target, fill(target, _CONTEXT), 1, 4 * _REPEATS))
    layer = max(0.0, (times[1] - times[0]) / (_DEPTHS[1] - _DEPTHS[0]))
    return layer, max(0.0, times[0] - _DEPTHS[0] * layer)


def _forward_seconds(target: HuggingFaceTarget, lane: int, rows: int, repeats: int) -> float:
    tree = TokenTree([0] * rows, kary_shape((2,) * rows.bit_length())[:rows])

    def forward() -> None:
        target.forward({lane: tree})
        target.rollback()

    return seconds_of(forward, target.device, repeats)


def _llama(sizes: dict[str, Any], layers: int, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    heads, kv_heads, width = sizes["heads"]
    config = LlamaConfig(
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width,
        vocab_size=sizes["vocab_size"],
        dtype=dtype,
    )
    return LlamaForCausalLM(config).to(device, dtype).eval()


def _memory_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
