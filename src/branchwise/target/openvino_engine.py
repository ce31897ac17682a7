"""A compiled decoder: named tensors in, named tensors out. Knows the engine's settings; knows no lane and no tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import openvino as ov
import torch
from torch import Tensor

from .decoder_parts import Decoder
from .openvino_attention import Attention
from .openvino_graph import build_graph
from .openvino_tensors import shared
from .quantised import Quantised

_ROW_TYPES = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16, torch.float16: ov.Type.f16}


@dataclass(frozen=True)
class Numbers:
    """What a compiled decoder computes in.

    Attributes:
        products: "f32" or "bf16": of activations and their products.
        rows: dtype of keys and values in the cache.
        quantised_activations: whether whole-number products may be used where weights have 8 bits; activations are then
            rounded to 8 bits, row by row in groups of 32.
    """

    products: str
    rows: torch.dtype
    quantised_activations: bool = False

    @classmethod
    def of(cls, weights: str) -> Numbers:
        """For a format of weights: bfloat16 where this machine multiplies it, but for weights in float32 and in 8 bits.

        Those in 8 bits are multiplied in whole numbers: unlike their products in bfloat16, a row is then the same to
        the last bit however many rows there are.
        """
        if weights == "int8":
            return cls("f32", torch.float32, quantised_activations=True)
        has_bfloat16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if weights == "f32" or not has_bfloat16:
            return cls("f32", torch.float32)
        return cls("bf16", torch.bfloat16)

    def settings(self) -> dict[str, object]:
        """As the engine takes them."""
        return {
            "INFERENCE_PRECISION_HINT": self.products,
            "KV_CACHE_PRECISION": {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[self.rows],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if self.quantised_activations else 0,
        }


class CompiledDecoder:
    """One decoder, compiled for some feature layers.

    Args:
        decoder: its parts.
        matrices: as for `build_graph`.
        numbers: what to compute in.
        paged: whether layers without a window use the engine's paged attention.
        feature_layers: hidden states to put out.
        threads: CPU threads.

    Attributes:
        feature_layers: what was asked for.
        gathered: layers whose new rows come out of `run` under the name "new_rows".
        windows: sliding windows of these layers.
    """

    def __init__(
        self,
        decoder: Decoder,
        matrices: Mapping[str, Quantised] | torch.dtype,
        numbers: Numbers,
        *,
        paged: bool,
        feature_layers: Sequence[int],
        threads: int,
    ) -> None:
        attention = Attention(decoder, _ROW_TYPES[numbers.rows], paged)
        self.feature_layers = tuple(feature_layers)
        self.gathered = attention.gathered
        self.windows = attention.windows
        self.uses_pages = len(self.gathered) < len(decoder.layers)
        self._decoder = decoder
        # the compiled graph may go on using the memory of its constants
        self._graph = build_graph(decoder, matrices, attention, feature_layers)
        settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
        compiled = ov.Core().compile_model(self._graph.model, "CPU", {**settings, **numbers.settings()})
        self._request = compiled.create_infer_request()
        self._outputs = {output.any_name for output in compiled.outputs}
        self._pool: Tensor | None = None
        self._bound: list[Tensor] = []  # what the request points into

    def bind(self, pool: Tensor) -> None:
        """Keys and values are in ``pool`` ``[2 L, blocks, K, 32, D]`` from now on."""
        if pool is self._pool:
            return
        self._pool = pool
        for layer in range(len(self._decoder.layers)):
            self._request.set_tensor(f"keys.{layer}", shared(pool[2 * layer]))
            self._request.set_tensor(f"values.{layer}", shared(pool[2 * layer + 1]))

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One forward.

        Args:
            given: every input but keys and values, contiguous.

        Returns:
            every output and "hidden.0", float32, in memory of their own.
        """
        nodes, wanted = len(given["embedded"]), len(given["wanted"])
        made = {name: torch.empty(self._shape(name, nodes, wanted)) for name in self._outputs}
        for name, tensor in {**given, **made}.items():
            self._request.set_tensor(name, shared(tensor))
        self._bound = [*given.values(), *made.values()]
        self._request.start_async()
        self._request.wait()
        return {**made, "hidden.0": given["embedded"]}

    def _shape(self, name: str, nodes: int, wanted: int) -> tuple[int, ...]:
        if name == "logits":
            return wanted, len(self._decoder.head.weight)
        if name == "new_rows":
            return 2 * len(self.gathered), nodes, self._decoder.key_heads * self._decoder.width
        return nodes, self._decoder.head.weight.shape[1]
