"""Seconds of one forward of the target: weights, keys and values, arithmetic, small operations, starting them.

A roofline (Williams, Waterman and Patterson 2009) per kind of work: linear layers and attention take the longer of
reading and multiplying, and follow each other. With R rows in all (nodes of all trees, or tokens of a prompt), weights
of W bytes and P parameters that a row is multiplied with, H query and K key/value heads of width D, and C visible rows
per lane of n nodes:

    linear        max(W / bandwidth, 2 P R / rate)                      experts: those that are touched
    attention     max(2 K D bytes C / bandwidth, 4 H D n C / rate)      over lanes, layer by layer
    small         bytes that norms, rotations and activations move / bandwidth
    links         with several devices: two sums over them per layer, one gathering of logits
    launch        per kernel; beside the rest where it overlaps, else on top

On a measured machine each kind has its own measured speed instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .hardware import ENGINES, Hardware
from .model_shape import ModelShape
from .rates import Rates, rates_of

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


@dataclass(frozen=True)
class Lanes:
    """Some lanes that are alike.

    Attributes:
        rows: of each: nodes of its tree, or tokens of a prompt. An average may be broken.
        context: committed tokens of each.
        count: lanes.
    """

    rows: float
    context: float
    count: int = 1


@dataclass(frozen=True)
class Traffic:
    """Elements that small operations read or write per row and layer, as multiples of three widths."""

    hidden: float
    heads: float
    mlp: float


#: counted in transformers' Llama layer: two norms in float32, rotations, residuals, activation; and the least of fused
#: kernels that read their input and write their output once
TRAFFIC = {"eager": Traffic(hidden=44, heads=13, mlp=5), "compiled": Traffic(hidden=8, heads=2, mlp=3)}
#: kernels of the same layer, and of a forward outside the layers
LAYER_KERNELS = {"eager": 38, "compiled": 12}
FORWARD_KERNELS = {"eager": 30, "compiled": 6}


@dataclass(frozen=True)
class ForwardSeconds:
    """Where the time of a forward goes.

    Attributes:
        linear, attention, small, links: what follows each other on the device.
        launch: starting kernels.
        overlaps: whether that happens beside the device's work.
        reads_weights: whether the linear layers wait for their weights rather than for their arithmetic.
    """

    linear: float
    attention: float
    small: float
    links: float
    launch: float
    overlaps: bool
    reads_weights: bool

    @property
    def device(self) -> float:
        """Everything but starting it."""
        return self.linear + self.attention + self.small + self.links

    @property
    def total(self) -> float:
        """Of the forward."""
        return max(self.device, self.launch) if self.overlaps else self.device + self.launch

    @property
    def bound(self) -> str:
        """What takes most of it."""
        if self.launch >= self.device or (not self.overlaps and self.launch > self.linear):
            return "launch"
        linear = "weights" if self.reads_weights else "arithmetic"
        parts = {linear: self.linear, "keys": self.attention, "small": self.small, "links": self.links}
        return max(parts, key=parts.__getitem__)


class ForwardCost:
    """Costs of one model on one machine.

    Args:
        shape: the model.
        hardware: the machine.
        dtype: of weights, keys and values.
        engine: how the forward is run, see `ENGINES`.
        devices: that share every layer (tensor parallelism).

    Raises:
        ValueError: the machine knows no such dtype or engine, or the heads cannot be shared so.
    """

    def __init__(self, shape: ModelShape, hardware: Hardware, dtype: str, engine: str, devices: int = 1) -> None:
        if engine not in ENGINES:
            raise ValueError(f"no engine is named {engine!r}; there are {', '.join(ENGINES)}")
        if devices < 1:
            raise ValueError(f"there must be at least 1 device, got {devices}")
        if devices > 1 and hardware.link is None:
            raise ValueError(f"{hardware.name} has no link to other devices; plan for 1")
        if shape.heads % devices:
            raise ValueError(f"{shape.heads} heads of {shape.name} cannot be shared by {devices} devices")
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"no dtype is named {dtype!r}; there are {', '.join(DTYPE_BYTES)}")
        self.shape = shape
        self.hardware = hardware
        self.devices = devices
        self.itemsize = DTYPE_BYTES[dtype]
        self._engine = engine
        self._rates: Rates = rates_of(hardware, dtype, engine)
        self._kv_heads = -(-shape.kv_heads // devices)  # of one device: a head is not cut
        self._windows = Counter(shape.windows)

    def seconds(self, lanes: Sequence[Lanes], with_logits: bool = True) -> ForwardSeconds:
        """One forward.

        Args:
            lanes: that take part.
            with_logits: whether every row is multiplied with the output matrix; reading a prompt does without.
        """
        rows = sum(group.rows * group.count for group in lanes)
        linear, reads_weights = self._linear(rows, with_logits)
        return ForwardSeconds(
            linear=linear,
            attention=self._attention(lanes),
            small=self._small(rows, with_logits),
            links=self._links(rows, with_logits),
            launch=self._rates.launch(
                self.shape.layers, LAYER_KERNELS[self._engine] * self.shape.layers + FORWARD_KERNELS[self._engine]
            ),
            overlaps=self.hardware.overlaps_launch,
            reads_weights=reads_weights,
        )

    @property
    def weight_bytes(self) -> float:
        """That one device holds."""
        return self.shape.parameters * self.itemsize / self.devices

    @property
    def token_bytes(self) -> float:
        """Keys and values of one token of a layer without a window, on one device, times the layers."""
        width = self._kv_heads * (self.shape.key_width + self.shape.value_width)
        return self.shape.layers * width * self.itemsize

    def lane_bytes(self, tokens: float) -> float:
        """Keys and values of one lane on one device; a layer with a window holds no more than that."""
        held = sum(count * _visible(tokens, window) for window, count in self._windows.items())
        return held * self.token_bytes / self.shape.layers

    def _linear(self, rows: float, with_logits: bool) -> tuple[float, bool]:
        shape = self.shape
        dense = shape.matrix_parameters + shape.vector_parameters + (shape.head_parameters if with_logits else 0)
        work = 2 * rows * (shape.matrix_parameters + (shape.head_parameters if with_logits else 0))
        seconds, reads = self._rates.linear(rows, dense * self.itemsize / self.devices, work / self.devices)
        if not shape.expert_parameters:
            return seconds, reads
        touched = shape.touched_experts(rows)
        weights = shape.expert_parameters * touched / shape.experts * self.itemsize / self.devices
        work = 2 * rows * shape.expert_parameters * shape.experts_taken / shape.experts / self.devices
        more, reads_experts = self._rates.linear(rows * shape.experts_taken / touched, weights, work)
        return seconds + more, reads if seconds > more else reads_experts

    def _attention(self, lanes: Sequence[Lanes]) -> float:
        heads = self.shape.heads / self.devices
        width = self.shape.key_width + self.shape.value_width
        seconds = 0.0
        for window, layers in self._windows.items():
            read = work = 0.0
            for group in lanes:
                visible = _visible(group.context, window) + group.rows
                read += group.count * visible
                work += group.count * visible * group.rows
            read *= self._kv_heads * width * self.itemsize
            seconds += layers * self._rates.attention(read, 2 * heads * width * work)
        return seconds

    def _small(self, rows: float, with_logits: bool) -> float:
        shape, traffic = self.shape, TRAFFIC[self._engine]
        shared = traffic.heads * (shape.query_width + shape.kv_width) + traffic.mlp * shape.mlp_width
        elements = shape.layers * (traffic.hidden * shape.hidden + shared / self.devices)
        if with_logits:
            elements += 2 * shape.vocabulary
        return self._rates.small(rows * elements * self.itemsize)

    def _links(self, rows: float, with_logits: bool) -> float:
        link = self.hardware.link
        if self.devices == 1 or link is None:
            return 0.0
        others = (self.devices - 1) / self.devices
        # a sum over all devices sends everything twice: once to add up, once to hand out
        layer = 2 * (link.seconds + 2 * others * rows * self.shape.hidden * self.itemsize / link.bytes_per_second)
        logits = link.seconds + others * rows * self.shape.vocabulary * self.itemsize / link.bytes_per_second
        return self.shape.layers * layer + (logits if with_logits else 0.0)


def _visible(context: float, window: int | None) -> float:
    return context if window is None else min(context, window)
