"""A transformers model compiled with OpenVINO for CPUs, as a target.

The model is read, never run (its embeddings are looked up, and its own rotary tables are asked) and never changed. One
graph scores the trees of all lanes, packed without padding; keys and values lie in a `PagedCache` that the graph reads
in place. What was compiled is exact in this sense: drafts never change what plain decoding on the same engine gives, as
far as the rounding of a row does not depend on how many rows are computed at once (docs/performance.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

try:
    import openvino
except ImportError as error:
    raise ImportError(
        f"the compiled engine needs OpenVINO ({error}): pip install 'branchwise[openvino]', or engine='transformers'"
    ) from error

from ..cache.paged_cache import BLOCK_ROWS
from ..tree import TokenTree
from .compiled import CompiledTarget, check_compiled, format_for
from .grown_tree import GrownTree
from .openvino_engine import CompiledDecoder, Numbers
from .openvino_inputs import gathered_inputs, paged_inputs
from .protocol import TargetOutput
from .quantised_store import kept_matrices


class OpenVinoTarget(CompiledTarget):
    """Any ``AutoModelForCausalLM`` of the families in `EXPORTED_MODEL_TYPES`, compiled for the CPU.

    Args:
        model: the model, in eval mode and on the CPU; left exactly as found.
        weights: "f32", "bf16", "int8" or "int4"; quantised ones are kept on disk. If absent, what holds the model's own
            numbers without loss: "bf16" for a model in bfloat16, else "f32".
        numbers: what activations and the cache are computed and kept in; chosen by ``weights`` and machine if absent.
        paged: whether layers without a sliding window use the engine's paged attention. Without it they gather their
            rows as those with a window do.
        prefill_chunk: prompt tokens per prefill forward.
        threads: CPU threads; as many as torch uses if absent.
        cache_dir: root of the cache folder, as for `branchwise.hub`.

    Raises:
        UnsupportedModel: the model cannot be kept exact, or is of a family that cannot be compiled.
        ValueError: a format or number is not known.
        ImportError: OpenVINO is not installed; names the extra.
    """

    engine = "openvino"
    _least_nodes = 2  # see `_pair`

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        weights: str | None = None,
        numbers: Numbers | None = None,
        paged: bool = True,
        prefill_chunk: int = 512,
        threads: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        check_compiled(model, prefill_chunk)
        asked = {"weights": weights, "numbers": numbers, "paged": paged, "prefill_chunk": prefill_chunk}
        weights = format_for(model, weights)
        self.numbers = Numbers.of(weights) if numbers is None else numbers
        super().__init__(
            model,
            weights=weights,
            rows=self.numbers.rows,
            block_rows=BLOCK_ROWS,
            prefill_chunk=prefill_chunk,
            threads=threads,
            asked={**asked, "threads": threads, "cache_dir": cache_dir},
        )
        self._paged = paged
        self._matrices = kept_matrices(self.decoder, weights, cache_dir)
        self._compiled: dict[bool, CompiledDecoder] = {}  # by whether it is paged; shared with those `for_drafting`

    @property
    def cost_facts(self) -> dict[str, str | int | bool]:
        """What a forward's time depends on, besides model and machine; for the cost curve."""
        return {
            "weights_format": self.weights,
            "products": self.numbers.products,
            "rows": str(self.numbers.rows).removeprefix("torch."),
            "quantised_activations": self.numbers.quantised_activations,
            "paged": self._paged,
            "openvino": openvino.__version__,
            "engine_threads": self._threads,
        }

    def for_drafting(self) -> Self:
        """See `GrowingTarget.for_drafting`. Weights are shared.

        Layers gather their rows: paged attention lets every node see all rows before those of the forward, so that
        nodes of one level would see siblings of the level above.
        """
        twin = super().for_drafting()
        twin._paged = False
        return twin

    def extend(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...] = (),
        wanted: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, TargetOutput]:
        """See `CompiledTarget.extend`.

        Raises:
            RuntimeError: layers use paged attention.
        """
        if self._paged:
            raise RuntimeError("trees cannot grow in paged attention; draft with what for_drafting() gives")
        return super().extend(trees, feature_layers, wanted)

    def _run(
        self, trees: Mapping[int, GrownTree], feature_layers: tuple[int, ...], wanted: Sequence[int]
    ) -> dict[str, Tensor]:
        compiled = self._compiled_for(feature_layers)
        lone = [lane for lane, grown in trees.items() if len(grown) == 1]
        trees = {lane: _pair(grown) if lane in lone else grown for lane, grown in trees.items()}
        given = {
            "embedded": self._embedded(trees),
            "wanted": torch.tensor(wanted, dtype=torch.int32),
            **self._turned(trees),
        }
        self._take_rows(trees)
        try:
            if compiled.uses_pages:
                given |= paged_inputs(self.cache, {lane: grown.tree for lane, grown in trees.items()})
            if compiled.gathered:
                given |= gathered_inputs(self.cache, trees, compiled.windows)
            compiled.bind(self.cache.pool)
            made = compiled.run(given)
            if compiled.gathered:
                self._write(compiled, trees, made.pop("new_rows"))
            for lane in lone:
                self.cache.drop_newest(lane)
        except BaseException:
            self.rollback()
            raise
        return made

    def _write(self, compiled: CompiledDecoder, trees: Mapping[int, GrownTree], rows: Tensor) -> None:
        planes = [plane for layer in compiled.gathered for plane in (2 * layer, 2 * layer + 1)]
        nodes = {lane: len(grown) for lane, grown in trees.items()}
        self.cache.write(planes, nodes, rows.unflatten(2, (self.decoder.key_heads, self.decoder.width)))

    def _compiled_for(self, feature_layers: tuple[int, ...]) -> CompiledDecoder:
        """The compiled decoder; compiled at first use, for what the drafter turns out to want."""
        compiled = self._compiled.get(self._paged)
        have = set() if compiled is None else set(compiled.feature_layers)
        if compiled is None or not have.issuperset(feature_layers):
            compiled = self._compiled[self._paged] = CompiledDecoder(
                self.decoder,
                self._matrices,
                self.numbers,
                paged=self._paged,
                feature_layers=sorted(have.union(feature_layers)),
                threads=self._threads,
            )
        return compiled


def _pair(grown: GrownTree) -> GrownTree:
    """A lone node with a child that nobody asks for.

    For a single row the engine has other kernels, which round otherwise. From two rows on, a row is the same to the
    last bit however many there are, in 8 bits where the processor has AVX512: with a second one, plain decoding and a
    chain of drafts agree to the last bit.
    """
    tree = grown.tree
    return GrownTree(TokenTree((*tree.tokens, tree.tokens[-1]), (*tree.parents, len(tree) - 1)), grown.known)
