"""What the targets that run a compiled decoder have in common: lanes, prompts, and the form of an answer.

The model is read, never run (its embeddings are looked up, and its own rotary tables are asked) and never changed. Keys
and values lie in a `PagedCache` that the decoder reads and writes in place. Knows lanes and trees; how a decoder is
made and run is each engine's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate, chain, repeat
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..cache import PagedCache, Snapshot
from ..tree import TokenTree
from .decoder_parts import REMEDY, check_exported, read_decoder
from .grown_tree import GrownTree
from .protocol import TargetOutput
from .quantised import check_weights
from .support import UnsupportedModel, check_eval_mode, check_supported, context_limit
from .turns import Turns


class CompiledTarget(ABC):
    """A target over a compiled decoder.

    Args:
        model: of the families in `EXPORTED_MODEL_TYPES`, in eval mode and on the CPU; left exactly as found.
        weights: "f32", "bf16", "int8" or "int4".
        rows: dtype of the cache.
        block_rows: rows of a block of the cache.
        turned_values: see `PagedCache`.
        prefill_chunk: prompt tokens per prefill forward.
        threads: CPU threads; as many as torch uses if absent.
        asked: arguments of the engine's own class, as they were given.

    Raises:
        UnsupportedModel: the model cannot be kept exact, or is of a family that cannot be compiled.
        ValueError: a number is out of range.
    """

    engine: str
    _least_nodes = 1
    """Nodes of a lane that the decoder is given at least."""
    solo_beyond: int | None = None
    """See `Target.solo_beyond`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        weights: str,
        rows: torch.dtype,
        block_rows: int,
        prefill_chunk: int,
        threads: int | None,
        asked: Mapping[str, Any],
        turned_values: bool = False,
    ) -> None:
        self.model = model
        self.weights = weights
        self.prefill_chunk = prefill_chunk
        self.decoder = read_decoder(model)
        self.windows = [layer.window for layer in self.decoder.layers]
        self.context_limit = context_limit(model)
        self.vocab_size = len(self.decoder.head.weight)
        self.device = torch.device("cpu")
        heads, width = self.decoder.key_heads, self.decoder.width
        self._new_cache = partial(PagedCache, len(self.windows), heads, width, rows, block_rows, turned_values)
        self.cache = self._new_cache()
        self._in_flight: dict[int, TokenTree] = {}
        self._asked = dict(asked)
        self._other: CompiledTarget | None = None
        self._threads = threads if threads is not None else torch.get_num_threads()
        self._turns = Turns(self.decoder.rotary)

    @abstractmethod
    def _run(
        self, trees: Mapping[int, GrownTree], feature_layers: tuple[int, ...], wanted: Sequence[int]
    ) -> Mapping[str, Tensor]:
        """One forward of the nodes to run now; its rows stay in flight, unless it raises.

        Args:
            trees: by lane; either all begin, or all grow.
            feature_layers: hidden states to give.
            wanted: nodes that want logits, numbered through all lanes, each with `_least_nodes` nodes or more.

        Returns:
            "logits" ``[R, V]``, "hidden.i" ``[T, h]`` for every feature layer i, and perhaps "top_values" and
            "top_tokens" ``[R, k]``, see `TargetOutput`.
        """

    # other targets like this one

    def beside(self, model: PreTrainedModel) -> CompiledTarget:
        """Another model on the same engine, asked for in the same way; the latest one is kept for the next call.

        Raises:
            UnsupportedModel: the engine does not run this model.
        """
        if model is self.model:
            return self
        if self._other is None or self._other.model is not model:
            self._other = None  # its memory is free before the next one's is needed
            self._other = type(self)(model, **self._asked)
        return self._other

    def for_drafting(self) -> Self:
        """See `GrowingTarget.for_drafting`. Weights are shared."""
        twin = copy(self)
        twin.cache = self._new_cache()
        twin._in_flight = {}
        return twin

    # lanes

    def open(self, expected_rows: int = 0, longest: int | None = None) -> int:
        """See `Target.open`."""
        check_eval_mode(self.model)
        return self.cache.open(expected_rows)

    def free(self, lane: int) -> None:
        """See `Target.free`."""
        self.cache.free(lane)

    def clear(self, lane: int) -> None:
        """See `Target.clear`."""
        self.cache.clear(lane)

    def shorten(self, lane: int, length: int) -> None:
        """See `GrowingTarget.shorten`."""
        self.cache.shorten(lane, length)

    def scrub(self, lane: int) -> None:
        """See `Target.scrub`."""
        self.cache.scrub(lane)

    def length(self, lane: int) -> int:
        """See `Target.length`."""
        return self.cache.length(lane)

    def depth_limit(self, lane: int) -> int | None:
        """See `Target.depth_limit`."""
        return None if self.context_limit is None else max(0, self.context_limit - 1 - self.cache.length(lane))

    def limit_rows(self, rows: int) -> None:
        """See `Target.limit_rows`."""
        self.cache.limit_rows(rows)

    def snapshot(self, lane: int) -> Snapshot:
        """See `Target.snapshot`."""
        return self.cache.snapshot(lane)

    def restore(self, lane: int, snapshot: Snapshot, tokens: Sequence[int]) -> None:
        """See `Target.restore`."""
        self.cache.restore(lane, snapshot, len(tokens))

    # forwards

    def prefill(self, lane: int, prompt: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.prefill`."""
        tokens = list(prompt[:-1])
        chunks = [tokens[i : i + self.prefill_chunk] for i in range(0, len(tokens), self.prefill_chunk)]
        parts = [self.feed(lane, chunk, feature_layers) for chunk in chunks]
        return {layer: torch.cat([part[layer] for part in parts]) for layer in feature_layers if parts}

    @torch.no_grad()
    def feed(self, lane: int, tokens: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.feed`."""
        tree = TokenTree.from_chain(tokens[0], list(tokens[1:]))
        made = self._run({lane: GrownTree(tree)}, feature_layers, wanted=[len(tree) - 1])
        self.cache.commit({lane: range(len(tree))})
        return self._features(made, feature_layers, range(len(tree)))

    def forward(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...] = (),
        wanted: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, TargetOutput]:
        """See `Target.forward` and `GrowingTarget.forward`."""
        return self._score({lane: GrownTree(tree) for lane, tree in trees.items()}, feature_layers, wanted)

    def extend(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...] = (),
        wanted: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, TargetOutput]:
        """See `GrowingTarget.extend`.

        Raises:
            ValueError: a lane has nothing in flight, or its tree is not what is in flight with more nodes.
        """
        grown = {}
        for lane, tree in trees.items():
            before = self._in_flight.get(lane)
            grown[lane] = GrownTree(tree, 0 if before is None else len(before))
            grown[lane].check_continues(lane, before)
        return self._score(grown, feature_layers, wanted)

    @torch.no_grad()
    def _score(
        self,
        trees: Mapping[int, GrownTree],
        feature_layers: tuple[int, ...],
        wanted: Mapping[int, Sequence[int]] | None,
    ) -> dict[int, TargetOutput]:
        for lane, grown in trees.items():
            self._check_depth(lane, grown.tree)
        nodes = list(map(len, trees.values()))
        places = list(accumulate((max(self._least_nodes, count) for count in nodes), initial=0))
        rows = [range(first, first + count) for first, count in zip(places, nodes, strict=False)]
        asked: Sequence[Sequence[int]] = rows
        if wanted is not None:
            shifts = [first - grown.known for first, grown in zip(places, trees.values(), strict=False)]
            asked = [[node + shift for node in wanted[lane]] for lane, shift in zip(trees, shifts, strict=True)]
        made = self._run(trees, feature_layers, [*chain.from_iterable(asked)])
        self._in_flight |= {lane: grown.tree for lane, grown in trees.items()}
        counts = list(map(len, asked))
        logits = _parted(made["logits"], counts)  # [n, V] each
        tops = [_parted(made[name], counts) for name in ("top_values", "top_tokens") if name in made]
        parts = self._features(made, feature_layers, [*chain.from_iterable(rows)])
        features = {layer: _parted(part, nodes) for layer, part in parts.items()}
        return {
            lane: TargetOutput(logits[i], {layer: part[i] for layer, part in features.items()}, top)
            for i, (lane, top) in enumerate(zip(trees, zip(*tops, strict=True) if tops else repeat(None), strict=False))
        }

    def _check_depth(self, lane: int, tree: TokenTree) -> None:
        limit = self.depth_limit(lane)
        if limit is not None and tree.height > limit:
            raise ValueError(
                f"the tree of lane {lane} is {tree.height} deep but only {limit} positions are left below its root "
                f"at position {self.cache.length(lane)}"
            )

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """See `Target.commit`."""
        self.cache.commit(paths)
        self._in_flight = {}

    def rollback(self) -> None:
        """See `Target.rollback`."""
        self.cache.rollback()
        self._in_flight = {}

    # what every engine brings to a forward

    def _embedded(self, trees: Mapping[int, GrownTree]) -> Tensor:
        """Embeddings of the nodes to run now, float32 ``[T, h]``."""
        ids = torch.tensor([token for grown in trees.values() for token in grown.tokens])
        return self.model.get_input_embeddings()(ids).float()

    def _turned(self, trees: Mapping[int, GrownTree]) -> dict[str, Tensor]:
        """Their rows of the rotary tables, see `Turns.of`."""
        return self._turns.of([self.cache.length(lane) + d for lane, grown in trees.items() for d in grown.depth])

    def _take_rows(self, trees: Mapping[int, GrownTree]) -> None:
        """Room in the cache for the nodes to run now."""
        takes = self.cache.extend if any(grown.known for grown in trees.values()) else self.cache.begin
        takes({lane: len(grown) for lane, grown in trees.items()})

    def _features(
        self, made: Mapping[str, Tensor], feature_layers: tuple[int, ...], nodes: Sequence[int]
    ) -> dict[int, Tensor]:
        """Of some nodes, in the model's own dtype, which heads are in."""
        if not feature_layers:
            return {}
        rows = {layer: made[f"hidden.{layer}"] for layer in feature_layers}
        if any(len(row) != len(nodes) for row in rows.values()):  # some nodes are padding
            at = torch.tensor(nodes)
            rows = {layer: row.index_select(0, at) for layer, row in rows.items()}
        return {layer: row.to(self.model.dtype) for layer, row in rows.items()}


def _parted(rows: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
    """Rows of every lane; a lone lane's without a call of torch, which costs more than it looks."""
    return (rows,) if len(counts) == 1 else rows.split(counts)


def check_compiled(model: PreTrainedModel, prefill_chunk: int) -> None:
    """What every compiled engine refuses; see `CompiledTarget`."""
    if prefill_chunk < 1:
        raise ValueError(f"prefill_chunk must be >= 1 token, got {prefill_chunk}")
    check_exported(model)
    check_supported(model)
    device = model.get_input_embeddings().weight.device
    if device.type != "cpu":
        name = model.config.model_type
        raise UnsupportedModel(name, f"it is on {device}, and compiled engines run on the CPU", REMEDY)


def format_for(model: PreTrainedModel, weights: str | None) -> str:
    """What was asked for, or the format that loses nothing.

    Raises:
        ValueError: there is no such format.
        UnsupportedModel: no format holds the model's numbers.
    """
    if weights is not None:
        check_weights(weights)
        return weights
    if model.dtype is torch.float64:
        name = model.config.model_type
        raise UnsupportedModel(name, "it is in float64, and compiled engines compute in float32", "give model.float()")
    return "bf16" if model.dtype is torch.bfloat16 else "f32"
