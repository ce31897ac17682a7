"""A transformers model compiled with OpenVINO for CPUs, as a target.

The model is read, never run (its embeddings are looked up, and its own rotary tables are asked) and never changed. One
graph scores the trees of all lanes, packed without padding; keys and values lie in a `PagedCache` that the graph reads
in place. What was compiled is exact in this sense: drafts never change what plain decoding on the same engine gives, as
far as the rounding of a row does not depend on how many rows are computed at once (docs/performance.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedModel

try:
    import openvino
except ImportError as error:
    raise ImportError(
        f"the compiled engine needs OpenVINO ({error}): pip install 'branchwise[openvino]', or engine='transformers'"
    ) from error

from ..cache import PagedCache, Snapshot
from ..tree import TokenTree
from .openvino_decoder import REMEDY, check_exported, read_decoder
from .openvino_engine import CompiledDecoder, Numbers
from .openvino_inputs import Turns, gathered_inputs, paged_inputs, positions_of
from .openvino_store import quantised_weights
from .openvino_weights import Quantised, check_weights
from .protocol import TargetOutput
from .support import UnsupportedModel, check_eval_mode, check_supported, context_limit

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class OpenVinoTarget:
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
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk must be >= 1 token, got {prefill_chunk}")
        check_exported(model)
        check_supported(model)
        self._check_place(model)
        weights = _own_format(model) if weights is None else weights
        check_weights(weights)
        self.model = model
        self.weights = weights
        self.numbers = Numbers.of(weights) if numbers is None else numbers
        self.prefill_chunk = prefill_chunk
        self.decoder = read_decoder(model)
        self.windows = [layer.window for layer in self.decoder.layers]
        self.context_limit = context_limit(model)
        self.vocab_size = len(self.decoder.head.weight)
        self.device = torch.device("cpu")
        self.cache = PagedCache(len(self.windows), self.decoder.key_heads, self.decoder.width, self.numbers.rows)
        self._paged = paged
        self._threads = threads if threads is not None else torch.get_num_threads()
        self._matrices: Mapping[str, Quantised] | torch.dtype
        self._matrices = _DTYPES.get(weights) or quantised_weights(self.decoder, weights, cache_dir)
        self._turns = Turns(self.decoder.rotary)
        self._compiled: CompiledDecoder | None = None

    @staticmethod
    def _check_place(model: PreTrainedModel) -> None:
        device = model.get_input_embeddings().weight.device
        if device.type != "cpu":
            name = model.config.model_type
            raise UnsupportedModel(name, f"it is on {device}, and the OpenVINO engine runs on the CPU", REMEDY)

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

    def scrub(self, lane: int) -> None:
        """See `Target.scrub`."""
        self.cache.scrub(lane)

    def length(self, lane: int) -> int:
        """See `Target.length`."""
        return self.cache.length(lane)

    def depth_limit(self, lane: int) -> int | None:
        """See `Target.depth_limit`."""
        return None if self.context_limit is None else max(0, self.context_limit - 1 - self.cache.length(lane))

    @property
    def solo_beyond(self) -> int | None:
        """See `Target.solo_beyond`."""
        return None

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
        chain = TokenTree.from_chain(tokens[0], list(tokens[1:]))
        made = self._run({lane: chain}, feature_layers, wanted=[len(chain) - 1])
        self.cache.commit({lane: range(len(chain))})
        return self._features(made, feature_layers, range(len(chain)))

    @torch.no_grad()
    def forward(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...] = ()) -> dict[int, TargetOutput]:
        """See `Target.forward`."""
        for lane, tree in trees.items():
            limit = self.depth_limit(lane)
            if limit is not None and tree.height > limit:
                raise ValueError(
                    f"the tree of lane {lane} is {tree.height} deep but only {limit} positions are left below its root "
                    f"at position {self.cache.length(lane)}"
                )
        nodes = list(map(len, trees.values()))
        places = list(accumulate((max(2, count) for count in nodes), initial=0))
        wanted = [first + node for first, count in zip(places, nodes, strict=False) for node in range(count)]
        made = self._run(trees, feature_layers, wanted)
        logits = made["logits"].split(nodes)  # [n, V] each
        features = {layer: rows.split(nodes) for layer, rows in self._features(made, feature_layers, wanted).items()}
        return {
            lane: TargetOutput(logits[i], {layer: parts[i] for layer, parts in features.items()})
            for i, lane in enumerate(trees)
        }

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """See `Target.commit`."""
        self.cache.commit(paths)

    def rollback(self) -> None:
        """See `Target.rollback`."""
        self.cache.rollback()

    def _run(
        self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...], wanted: Sequence[int]
    ) -> dict[str, Tensor]:
        compiled = self._compiled_for(feature_layers)
        trees = {lane: tree if len(tree) > 1 else _pair(tree) for lane, tree in trees.items()}
        ids = torch.tensor([token for tree in trees.values() for token in tree.tokens])
        given = {
            "embedded": self.model.get_input_embeddings()(ids).float(),
            "wanted": torch.tensor(wanted, dtype=torch.int32),
            **self._turns.of(positions_of(self.cache, trees)),
        }
        self.cache.begin({lane: len(tree) for lane, tree in trees.items()})
        try:
            if compiled.uses_pages:
                given |= paged_inputs(self.cache, trees)
            if compiled.gathered:
                given |= gathered_inputs(self.cache, trees, compiled.windows)
            compiled.bind(self.cache.pool)
            made = compiled.run(given)
            if compiled.gathered:
                self._write(compiled, made.pop("new_rows"))
        except BaseException:
            self.rollback()
            raise
        return made

    def _write(self, compiled: CompiledDecoder, rows: Tensor) -> None:
        planes = [plane for layer in compiled.gathered for plane in (2 * layer, 2 * layer + 1)]
        self.cache.write(planes, rows.unflatten(2, (self.decoder.key_heads, self.decoder.width)))

    def _compiled_for(self, feature_layers: tuple[int, ...]) -> CompiledDecoder:
        """The compiled decoder; compiled at first use, for what the drafter turns out to want."""
        have = set() if self._compiled is None else set(self._compiled.feature_layers)
        if self._compiled is None or not have.issuperset(feature_layers):
            wanted = sorted(have.union(feature_layers))
            self._compiled = CompiledDecoder(
                self.decoder,
                self._matrices,
                self.numbers,
                paged=self._paged,
                feature_layers=wanted,
                threads=self._threads,
            )
        return self._compiled

    def _features(
        self, made: Mapping[str, Tensor], feature_layers: tuple[int, ...], nodes: Sequence[int]
    ) -> dict[int, Tensor]:
        """Of some nodes, in the model's own dtype, which heads are in."""
        at = torch.tensor(nodes)
        return {layer: made[f"hidden.{layer}"].index_select(0, at).to(self.model.dtype) for layer in feature_layers}


def _pair(root: TokenTree) -> TokenTree:
    """A lone root with a child that nobody asks for.

    For a single row the engine has other kernels, which round otherwise. From two rows on, a row is the same to the
    last bit however many there are: with a second one, plain decoding and a chain of drafts agree to the last bit.
    """
    return TokenTree((root.tokens[0], root.tokens[0]), (-1, 0))


def _own_format(model: PreTrainedModel) -> str:
    """The format that loses nothing."""
    if model.dtype is torch.float64:
        name = model.config.model_type
        raise UnsupportedModel(name, "it is in float64, and the engine computes in float32", "give model.float()")
    return "bf16" if model.dtype is torch.bfloat16 else "f32"
