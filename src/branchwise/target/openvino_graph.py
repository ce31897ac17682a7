"""A decoder as one OpenVINO graph: linear layers, norms, the MLP, and what joins them. Attention has its own file.

T nodes of all lanes come packed, without padding. What the model itself computes quickly, it computes: the graph is
given the embedded tokens and the cosines and sines of their positions.

    input   embedded [T, h], cosines.X and sines.X [T, D] for every rotary table X, rows [R]: nodes that want logits,
            and what attention asks for
    output  logits [R, V], hidden.i [T, h] for every feature layer i, and rows that attention has not written itself

Knows a `Decoder` and the operations of OpenVINO; knows no lane and no tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
import torch
from openvino import opset15 as ops
from torch import Tensor

from .openvino_attention import Attention
from .openvino_decoder import Decoder, Layer, Linear, Norm
from .openvino_tensors import constant, float_constant, int_constant, named, parameter
from .openvino_weights import GROUP, Quantised

Node = Any
"""A node or an output of one, as the operations take them."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph and what must live as long as it does.

    Attributes:
        model: inputs and outputs as above.
        keeps: tensors whose memory the graph's constants share.
    """

    model: ov.Model
    keeps: list[Tensor]


def build_graph(
    decoder: Decoder,
    matrices: Mapping[str, Quantised] | torch.dtype,
    attention: Attention,
    feature_layers: Sequence[int] = (),
) -> Graph:
    """Builds the graph of a decoder.

    Args:
        decoder: its parts.
        matrices: quantised, by name; or the dtype that the model's own are multiplied in.
        attention: makes the nodes of attention.
        feature_layers: hidden states to put out, as numbered in `TargetOutput.features`.
    """
    builder = _Builder(decoder, matrices)
    embedded = parameter("embedded", ov.Type.f32, [-1, decoder.layers[0].before_attention.weight.numel()])
    tables = {
        name: tuple(parameter(f"{which}.{name}", ov.Type.f32, [-1, decoder.width]) for which in ("cosines", "sines"))
        for name in decoder.rotary
    }
    # [T, D] -> [T, 1, 1, D], once for all layers
    turns = {name: tuple(ops.unsqueeze(t, int_constant([1, 2])) for t in pair) for name, pair in tables.items()}
    rows = parameter("rows", ov.Type.i32, [-1])
    results = []
    hidden: Node = embedded
    for index, layer in enumerate(decoder.layers):
        if index in feature_layers:
            results.append(named(hidden, f"hidden.{index}"))
        hidden = builder.layer(index, layer, hidden, turns, attention)
    normed = _normed(hidden, decoder.norm)
    if len(decoder.layers) in feature_layers:
        results.append(named(normed, f"hidden.{len(decoder.layers)}"))
    wanted = ops.gather(normed, rows, int_constant(0))  # [R, h]
    results.append(named(builder.linear("head", decoder.head, wanted), "logits"))
    results.extend(attention.results())
    inputs = [embedded, *(table for pair in tables.values() for table in pair), rows, *attention.parameters()]
    return Graph(ov.Model(results, inputs, "decoder"), builder.keeps)


class _Builder:
    """Makes the nodes of layers; collects the tensors that they share memory with."""

    def __init__(self, decoder: Decoder, matrices: Mapping[str, Quantised] | torch.dtype) -> None:
        self.keeps: list[Tensor] = []
        self._decoder = decoder
        self._matrices = matrices

    def layer(
        self, index: int, layer: Layer, hidden: Node, turns: Mapping[str, tuple[Node, ...]], attention: Attention
    ) -> Node:
        """``[T, h]`` through one decoder layer."""
        decoder = self._decoder

        def linear(role: str, x: Node) -> Node:
            return self.linear(f"layers.{index}.{role}", layer.linears[role], x)

        x = _normed(hidden, layer.before_attention)
        query = self._heads(linear("query", x), decoder.heads, layer.query_norm, turns.get(layer.rotary or ""))
        key = self._heads(linear("key", x), decoder.key_heads, layer.key_norm, turns.get(layer.rotary or ""))
        mixed = linear("output", attention.node(index, query, key, linear("value", x)))
        hidden = ops.add(hidden, _maybe_normed(mixed, layer.after_attention))
        x = _normed(hidden, layer.before_mlp)
        gate = linear("gate", x)
        gate = ops.swish(gate) if decoder.activation == "silu" else ops.gelu(gate, "tanh")
        made = linear("down", ops.multiply(gate, linear("up", x)))
        return ops.add(hidden, _maybe_normed(made, layer.after_mlp))

    def linear(self, name: str, linear: Linear, x: Node) -> Node:
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

    def _heads(self, x: Node, heads: int, norm: Norm | None, turn: tuple[Node, ...] | None) -> Node:
        """Queries or keys ``[T, heads * D]``, normalised and turned as the layer wants it."""
        if norm is None and turn is None:
            return x
        x = ops.reshape(x, int_constant([-1, heads, 1, self._decoder.width]), False)
        x = _maybe_normed(x, norm)
        if turn is not None:
            x = _turned(x, *turn, self._decoder.width)
        return ops.reshape(x, int_constant([-1, heads * self._decoder.width]), False)

    def _constant(self, tensor: Tensor, kind: ov.Type | None = None, shape: Sequence[int] | None = None) -> Node:
        tensor = tensor.contiguous()
        self.keeps.append(tensor)
        return constant(tensor, kind, shape)


def _normed(x: Node, norm: Norm) -> Node:
    """Written as the engine's own fusion expects it."""
    square = ops.power(x, float_constant(2.0))
    mean = ops.reduce_mean(square, int_constant([-1]), keep_dims=True)
    root = ops.sqrt(ops.add(mean, float_constant(norm.epsilon)))
    return ops.multiply(ops.multiply(x, ops.divide(float_constant(1.0), root)), ops.constant(norm.weight.numpy()))


def _maybe_normed(x: Node, norm: Norm | None) -> Node:
    return x if norm is None else _normed(x, norm)


def _turned(x: Node, cosine: Node, sine: Node, width: int) -> Node:
    """Rotary positions on ``[T, heads, 1, D]``: halves are the two coordinates of a rotation."""
    halves = ops.variadic_split(x, int_constant(-1), int_constant([width // 2, width // 2]))
    swapped = ops.concat([ops.multiply(halves.output(1), float_constant(-1.0)), halves.output(0)], -1)
    return ops.add(ops.multiply(x, cosine), ops.multiply(swapped, sine))


def check_feature_layers(layers: Sequence[int], count: int) -> None:
    """Raises ValueError for hidden states that do not exist."""
    wrong = [layer for layer in layers if not 0 <= layer <= count]
    if wrong:
        raise ValueError(f"feature layers {wrong} do not exist: there are 0 to {count} (the final norm's output)")
