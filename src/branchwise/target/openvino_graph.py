"""A decoder as one OpenVINO graph: norms, rotary positions, the MLP, and what joins them.

T nodes of all lanes come packed, without padding. What the model itself computes quickly, it computes: the graph is
given the embedded tokens and the cosines and sines of their positions.

    input   embedded [T, h], cosines.X and sines.X [T, D] for every rotary table X, wanted [R]: nodes that want logits,
            and what attention asks for
    output  logits [R, V], hidden.i [T, h] for every feature layer i above 0 (that one is the input), and new_rows: keys
            and values that attention has not written itself

Knows a `Decoder` and the operations of OpenVINO; knows no lane and no tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import openvino as ov
import torch
from openvino import opset15 as ops
from torch import Tensor

from .decoder_parts import Decoder, Layer, Norm
from .openvino_attention import Attention
from .openvino_linear import Linears, Node
from .openvino_tensors import float_constant, int_constant, named, parameter
from .quantised import Quantised

Turns = Mapping[str, tuple[Node, ...]]
"""Cosines and sines ``[T, 1, 1, D]`` by the name of the table."""


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

    Raises:
        ValueError: there is no such feature layer.
    """
    count = len(decoder.layers)
    wrong = [layer for layer in feature_layers if not 0 <= layer <= count]
    if wrong:
        raise ValueError(f"feature layers {wrong} do not exist: there are 0 to {count} (the final norm's output)")
    linears = Linears(matrices)
    embedded = parameter("embedded", ov.Type.f32, [-1, decoder.norm.weight.numel()])
    tables = {
        name: tuple(parameter(f"{which}.{name}", ov.Type.f32, [-1, decoder.width]) for which in ("cosines", "sines"))
        for name in decoder.rotary
    }
    turns = {name: tuple(ops.unsqueeze(t, int_constant([1, 2])) for t in pair) for name, pair in tables.items()}
    wanted = parameter("wanted", ov.Type.i32, [-1])
    hidden: list[Node] = [embedded]  # the input of every layer
    for index, layer in enumerate(decoder.layers):
        attended = ops.add(hidden[-1], _attention(decoder, index, layer, linears, attention, turns, hidden[-1]))
        hidden.append(ops.add(attended, _mlp(decoder, index, layer, linears, attended)))
    hidden[-1] = _normed(hidden[-1], decoder.norm)
    read = ops.gather(hidden[-1], wanted, int_constant(0))  # [R, h]
    results = [
        named(linears.node("head", decoder.head, read), "logits"),
        *(named(hidden[layer], f"hidden.{layer}") for layer in feature_layers if layer),
        *attention.results(),
    ]
    inputs = [embedded, *(table for pair in tables.values() for table in pair), wanted, *attention.parameters()]
    return Graph(ov.Model(results, inputs, "decoder"), linears.keeps)


def _attention(
    decoder: Decoder, index: int, layer: Layer, linears: Linears, attention: Attention, turns: Turns, hidden: Node
) -> Node:
    """What the attention block adds to ``[T, h]``."""
    x = _normed(hidden, layer.before_attention)

    def linear(role: str, x: Node) -> Node:
        return linears.node(f"layers.{index}.{role}", layer.linears[role], x)

    turn = turns[layer.rotary] if layer.rotary is not None else None
    query = _heads(linear("query", x), decoder.heads, decoder.width, layer.query_norm, turn)
    key = _heads(linear("key", x), decoder.key_heads, decoder.width, layer.key_norm, turn)
    mixed = attention.node(index, query, key, linear("value", x))
    return _maybe_normed(linear("output", mixed), layer.after_attention)


def _mlp(decoder: Decoder, index: int, layer: Layer, linears: Linears, hidden: Node) -> Node:
    """What the MLP adds to ``[T, h]``."""
    x = _normed(hidden, layer.before_mlp)

    def linear(role: str, x: Node) -> Node:
        return linears.node(f"layers.{index}.{role}", layer.linears[role], x)

    gate = linear("gate", x)
    gate = ops.swish(gate) if decoder.activation == "silu" else ops.gelu(gate, "tanh")
    return _maybe_normed(linear("down", ops.multiply(gate, linear("up", x))), layer.after_mlp)


def _heads(x: Node, heads: int, width: int, norm: Norm | None, turn: tuple[Node, ...] | None) -> Node:
    """Queries or keys ``[T, heads * D]``, normalised and turned as the layer wants it."""
    if norm is None and turn is None:
        return x
    x = ops.reshape(x, int_constant([-1, heads, 1, width]), False)
    x = _maybe_normed(x, norm)
    if turn is not None:
        cosine, sine = turn
        x = _turned(x, cosine, sine, width)
    return ops.reshape(x, int_constant([-1, heads * width]), False)


def _normed(x: Node, norm: Norm) -> Node:
    """Written as the engine's own fusion expects it."""
    square = ops.power(x, float_constant(2.0))
    mean = ops.reduce_mean(square, int_constant([-1]), keep_dims=True)
    root = ops.sqrt(ops.add(mean, float_constant(norm.epsilon)))
    return ops.multiply(ops.multiply(x, ops.divide(float_constant(1.0), root)), ops.constant(norm.weight.numpy()))


def _maybe_normed(x: Node, norm: Norm | None) -> Node:
    return x if norm is None else _normed(x, norm)


def _turned(x: Node, cosine: Node, sine: Node, width: int) -> Node:
    """Rotary positions on ``[T, heads, 1, D]``: halves are the two coordinates of a rotation.

    Written as the engine's own fusion expects it; an axis counted from the end would not be recognised.
    """
    halves = ops.variadic_split(x, int_constant(3), int_constant([width // 2, width // 2]))
    swapped = ops.concat([ops.multiply(halves.output(1), float_constant(-1.0)), halves.output(0)], -1)
    return ops.add(ops.multiply(x, cosine), ops.multiply(swapped, sine))
