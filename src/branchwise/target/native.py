"""A transformers model run by this library's own C, compiled on first use for the processor it runs on, as a target.

Every weight is read from memory once per forward and multiplied with all nodes of all trees while it is at hand, so a
tree costs hardly more than a token as long as reading is what takes the time. Needs a C compiler; nothing to install.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Self

from torch import Tensor
from transformers import PreTrainedModel

from ..attention.native import NativeUnavailable
from .compiled import CompiledTarget, check_compiled, format_for
from .grown_tree import GrownTree
from .native_engine import NativeDecoder, Nodes, native_library
from .native_parts import PRODUCTS
from .quantised_store import FLOATS, kept_matrices

#: rows of a block of the cache: as many keys as attention takes at once, SPAN in native_decoder/block.h
_PAGE_ROWS = 128


class NativeTarget(CompiledTarget):
    """Any ``AutoModelForCausalLM`` of the families in `EXPORTED_MODEL_TYPES`, on the CPU.

    Args:
        model: the model, in eval mode and on the CPU; left exactly as found.
        weights: "f32", "bf16", "int8" or "int4"; quantised ones are kept on disk. If absent, what holds the model's own
            numbers without loss: "bf16" for a model in bfloat16, else "f32".
        products: what activations are multiplied in: "f32", "bf16", or, with quantised weights, "int8", which rounds
            them to 8 bits with a scale for 32 of them. If absent, bfloat16 where the processor multiplies it, else
            "int8" where it multiplies that faster; float32 for weights in float32 and where there is neither. The
            cache is in float32 with "f32", in bfloat16 with the others.
        prefill_chunk: prompt tokens per prefill forward.
        threads: CPU threads; as many as torch uses if absent.
        cache_dir: root of the cache folder, as for `branchwise.hub`.

    Raises:
        UnsupportedModel: the model cannot be kept exact, or is of a family that is not known here.
        ValueError: a format or number is not known.
        NativeUnavailable: there is no C compiler, or no bfloat16 where it was asked for.
    """

    engine = "native"
    #: nodes that one pass over the weights serves: CHUNK in native_decoder/linear.h
    rows_at_once = 32

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        weights: str | None = None,
        products: str | None = None,
        prefill_chunk: int = 512,
        threads: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        check_compiled(model, prefill_chunk)
        asked = {"weights": weights, "products": products, "prefill_chunk": prefill_chunk, "threads": threads}
        weights = format_for(model, weights)
        self.products = _products(weights, products)
        super().__init__(
            model,
            weights=weights,
            rows=FLOATS["f32" if self.products == "f32" else "bf16"],
            block_rows=_PAGE_ROWS,
            turned_values=True,
            prefill_chunk=prefill_chunk,
            threads=threads,
            asked={**asked, "cache_dir": cache_dir},
        )
        library = native_library().library
        assert library is not None, "who has products has a library"
        self._native = NativeDecoder(
            library,
            self.decoder,
            kept_matrices(self.decoder, weights, cache_dir),
            products=self.products,
            threads=self._threads,
        )
        self.cache.mover = self._native.move

    @property
    def cost_facts(self) -> dict[str, str | int | bool]:
        """What a forward's time depends on, besides model and machine; for the cost curve."""
        return {"weights_format": self.weights, "products": self.products, "engine_threads": self._threads}

    def for_drafting(self) -> Self:
        """See `GrowingTarget.for_drafting`. Weights are shared; the two may run at once."""
        twin = super().for_drafting()
        twin._native = self._native.twin()
        twin.cache.mover = twin._native.move
        return twin

    def _run(
        self, trees: Mapping[int, GrownTree], feature_layers: tuple[int, ...], wanted: Sequence[int]
    ) -> Mapping[str, Tensor]:
        count = len(self.windows)
        wrong = [layer for layer in feature_layers if not 0 <= layer <= count]
        if wrong:
            raise ValueError(f"feature layers {wrong} do not exist: there are 0 to {count} (the final norm's output)")
        whole = [grown.tree for grown in trees.values()]
        sizes = list(map(len, trees.values()))
        embedded, turns = self._embedded(trees), self._turned(trees)
        self._take_rows(trees)
        try:
            blocks = [self.cache.blocks(lane) for lane in trees]
            nodes = Nodes(
                embedded,
                turns,
                parents=_ints(parent for tree in whole for parent in tree.parents),
                depth=_ints(depth for tree in whole for depth in tree.depth),
                tree_begins=_ints(accumulate(map(len, whole), initial=0)),
                begins=_ints(accumulate(sizes, initial=0)),
                committed=_ints(self.cache.length(lane) for lane in trees),
                pages=_ints(block for lane in blocks for block in lane),
                page_begins=_ints(accumulate(map(len, blocks), initial=0)),
                wanted=_ints(wanted),
            )
            return self._native.run(nodes, self.cache.pool, feature_layers)
        except BaseException:
            self.rollback()
            raise


def _ints(numbers: Iterable[int]) -> array[int]:
    return array("i", numbers)


def is_worth_while() -> bool:
    """Whether this engine is the fastest here: there is a compiler, and the processor has what its C is written for."""
    return native_library().is_fast


def _products(weights: str, products: str | None) -> str:
    found = native_library()
    if found.library is None:
        raise NativeUnavailable(f"the engine 'native' is not available: {found.reason}; use engine='transformers'")
    if products is None:
        return found.products_for(weights)
    if products not in PRODUCTS:
        raise ValueError(f"products must be one of {', '.join(PRODUCTS)}, got {products!r}")
    if products == "bf16" and not found.multiplies_bfloat16:
        raise NativeUnavailable("this processor does not multiply bfloat16; products='f32' works everywhere")
    if products == "bf16" and weights == "f32":
        raise ValueError("weights='f32' are multiplied in float32; for products in bfloat16 use weights='bf16'")
    if products == "int8" and weights in FLOATS:
        raise ValueError(f"products='int8' go with weights='int8' or 'int4', got weights={weights!r}")
    return products
