"""Tree attention inside an OpenVINO graph, in two forms. Both read keys and values where a `PagedCache` keeps them.

`paged`     the engine's own paged attention, which also writes the new rows into the cache. A tree comes as a 0/1
            matrix of who sees whom. Its sliding window counts rows, not positions, so a branched tree cannot use it.
`gathered`  the blocks that may be seen are gathered and attention is softmax with a mask, query heads folded onto their
            key head; new rows are put out, for the host to write. Windows are exact, for positions are in the mask.

    input   keys.i, values.i [blocks, K, 32, D] of every layer i, and
    paged   past_lens [B], subsequence_begins [B + 1], block_indices [all blocks], block_indices_begins [B + 1],
            max_context_len [], qq_bias [sum of n^2] and qq_bias_begins [B + 1]
    gathered  spread [B, N]: node of each place, place [T]: the other way round, and for every window w
            blocks.w [B, M] and mask.w [B, 1, N, 32 M + N], added to scores
    output  new_rows [2 gathered layers, T, K D]: keys and values of each gathered layer in turn

Knows heads and rows; knows no weight and no token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino.op import _PagedAttentionExtension

from ..cache.paged_cache import BLOCK_ROWS
from .decoder_parts import Decoder
from .openvino_tensors import float_constant, int_constant, named, parameter

Node = Any

#: inputs of paged attention that a forward brings, with their shapes
_PAGED_INPUTS = {
    "past_lens": [-1],
    "subsequence_begins": [-1],
    "block_indices": [-1],
    "block_indices_begins": [-1],
    "max_context_len": [],
    "qq_bias": [-1],
    "qq_bias_begins": [-1],
}


class Attention:
    """Makes the attention of every layer of one graph.

    Args:
        decoder: heads, widths and windows.
        row_type: of the rows in the cache.
        paged: whether layers without a window use the engine's paged attention; the others never do.
    """

    def __init__(self, decoder: Decoder, row_type: ov.Type, paged: bool = True) -> None:
        self._decoder = decoder
        windows = [layer.window for layer in decoder.layers]
        #: layers whose rows the host has to write
        self.gathered = tuple(i for i, window in enumerate(windows) if window is not None or not paged)
        #: windows of these layers, each once
        self.windows = tuple(dict.fromkeys(windows[i] for i in self.gathered))
        shape = [-1, decoder.key_heads, BLOCK_ROWS, decoder.width]
        self._rows = [
            (parameter(f"keys.{i}", row_type, shape), parameter(f"values.{i}", row_type, shape))
            for i in range(len(windows))
        ]
        self._paged: dict[str, Node] = {}
        if len(self.gathered) < len(windows):
            kinds = {"qq_bias": ov.Type.u8}
            self._paged = {n: parameter(n, kinds.get(n, ov.Type.i32), s) for n, s in _PAGED_INPUTS.items()}
        self._places: dict[str, Node] = {}
        self._seen: dict[int | None, tuple[Node, Node]] = {}
        if self.gathered:
            self._places = {"spread": parameter("spread", ov.Type.i32, [-1, -1])}
            self._places["place"] = parameter("place", ov.Type.i32, [-1])
            self._seen = {w: _seen_inputs(w) for w in self.windows}
        self._written: list[Node] = []

    def parameters(self) -> list[Node]:
        """All inputs that attention asks for."""
        rows = [node for pair in self._rows for node in pair]
        seen = [node for pair in self._seen.values() for node in pair]
        return [*rows, *self._paged.values(), *self._places.values(), *seen]

    def results(self) -> list[Node]:
        """Outputs, once every layer has been made."""
        return [named(ops.concat(self._written, 0), "new_rows")] if self._written else []

    def node(self, index: int, query: Node, key: Node, value: Node) -> Node:
        """Attention of layer ``index`` over ``[T, H D]``, ``[T, K D]`` and ``[T, K D]``; gives ``[T, H D]``."""
        made = self._gather if index in self.gathered else self._page
        return made(index, query, key, value)

    def _page(self, index: int, query: Node, key: Node, value: Node) -> Node:
        decoder, given = self._decoder, self._paged
        none = {kind: ops.constant(np.zeros(0, dtype=kind)) for kind in ("float32", "int32")}
        zero = ops.constant(np.array(0, dtype=np.int32))
        arguments = [
            *(query, key, value, *self._rows[index]),
            *(given[n] for n in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")),
            float_constant(decoder.scale),
            zero,  # sliding window: none
            none["float32"],  # ALiBi slopes
            given["max_context_len"],
            none["int32"],  # score aggregation window
            *(none["int32"], none["int32"], none["float32"]),  # rotation of kept blocks
            *_sparse_attention_off(),
            ops.constant(np.zeros((0, 0, 0, 0), dtype=np.float32)),  # sinks
            *(zero, none["int32"], none["int32"], none["int32"]),  # eviction by diversity
            none["int32"],  # token types
            *(given["qq_bias"], given["qq_bias_begins"]),
        ]
        made = _PagedAttentionExtension([node.output(0) for node in arguments])
        facts = made.get_rt_info()
        for which in "kv":
            facts[f"num_{which}_heads"] = decoder.key_heads
            facts[f"{which}_head_size"] = decoder.width
        return made.output(0)

    def _gather(self, index: int, query: Node, key: Node, value: Node) -> Node:
        decoder = self._decoder
        group = decoder.heads // decoder.key_heads
        blocks, mask = self._seen[decoder.layers[index].window]
        self._written += [ops.unsqueeze(node, int_constant(0)) for node in (key, value)]
        rows = [
            ops.concat([self._past(past, blocks), self._spread(new, [0, 0, decoder.key_heads, -1], [0, 2, 1, 3])], 2)
            for past, new in zip(self._rows[index], (key, value), strict=True)
        ]  # [B, K, 32 M + N, D] each
        folded = self._spread(query, [0, 0, decoder.key_heads, group, -1], [0, 2, 3, 1, 4])  # [B, K, G, N, D]
        folded = ops.reshape(folded, int_constant([0, decoder.key_heads, -1, decoder.width]), True)
        repeated = ops.concat([mask] * group, 2) if group > 1 else mask  # [B, 1, G N, 32 M + N]
        made = ops.scaled_dot_product_attention(folded, *rows, repeated, float_constant(decoder.scale), causal=False)
        made = ops.reshape(made, int_constant([0, decoder.key_heads, group, -1, decoder.width]), True)
        made = ops.transpose(made, int_constant([0, 3, 1, 2, 4]))  # [B, N, K, G, D]
        made = ops.reshape(made, int_constant([-1, decoder.heads * decoder.width]), False)
        return ops.gather(made, self._places["place"], int_constant(0))

    def _past(self, rows: Node, blocks: Node) -> Node:
        """The gathered blocks as ``[B, K, 32 M, D]``."""
        picked = ops.transpose(ops.gather(rows, blocks, int_constant(0)), int_constant([0, 2, 1, 3, 4]))
        picked = ops.reshape(picked, int_constant([0, self._decoder.key_heads, -1, self._decoder.width]), True)
        return ops.convert(picked, "f32")

    def _spread(self, packed: Node, shape: list[int], order: list[int]) -> Node:
        """``[T, X]`` to ``[B, N, X]``, reshaped and transposed."""
        spread = ops.gather(packed, self._places["spread"], int_constant(0))
        return ops.transpose(ops.reshape(spread, int_constant(shape), True), int_constant(order))


def seen_names(window: int | None) -> tuple[str, str]:
    """Names of the inputs that say what a window sees."""
    return f"blocks.{window}", f"mask.{window}"


def _seen_inputs(window: int | None) -> tuple[Node, Node]:
    blocks, mask = seen_names(window)
    return parameter(blocks, ov.Type.i32, [-1, -1]), parameter(mask, ov.Type.f32, [-1, 1, -1, -1])


def _sparse_attention_off() -> list[Node]:
    """An empty threshold switches it off; the sizes are then not read."""
    sizes = [ops.constant(np.array(size, dtype=np.int32)) for size in (64, 8)]
    return [ops.constant(np.zeros(0, dtype=np.float32)), *sizes]
