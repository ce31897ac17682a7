"""A transformers model as target, unmodified.

The model is borrowed for the length of each forward: the attention implementation is switched to ours, the cache is
ours, and both are put back before anybody else sees the model. Models that do not let their attention be replaced
(Falcon), or do not hand our step through to it (StableLM), keep their own and get the tree as an additive 4-D mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..attention.grown_layout import GrownLayout
from ..attention.interface import STEP_KEYWORD, AttentionStep, StepMissing, register
from ..attention.layout import TreeLayout
from ..attention.registry import get_backend
from ..cache import Packing, Snapshot, TreeCache
from ..tree import TokenTree
from .probe import probe
from .protocol import TargetOutput
from .rotary import find_length_dependent_rotary
from .support import (
    TESTED_MODEL_TYPES,
    UnsupportedModel,
    check_eval_mode,
    check_supported,
    context_limit,
    layer_windows,
)

if TYPE_CHECKING:
    from .early_exit import HeadStart
    from .layers import Part


class HuggingFaceTarget:
    """Any supported ``AutoModelForCausalLM``.

    Args:
        model: the model, in eval mode; left exactly as found after every call.
        attention: name of the attention backend, or ``"auto"``.
        prefill_chunk: prompt tokens per prefill forward.

    Raises:
        UnsupportedModel: the model cannot be kept exact; see `support`.
    """

    def __init__(self, model: PreTrainedModel, *, attention: str = "auto", prefill_chunk: int = 512) -> None:
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk must be >= 1 token, got {prefill_chunk}")
        check_supported(model)
        self.model = model
        self.prefill_chunk = prefill_chunk
        self.windows = layer_windows(model)
        self.context_limit = context_limit(model)
        self.vocab_size = int(model.get_output_embeddings().out_features)
        self.device = model.get_input_embeddings().weight.device
        self.replaces_attention = bool(type(model)._can_set_attn_implementation())
        self._attention = attention
        self._backend = get_backend(attention)
        self._rotary = find_length_dependent_rotary(model)
        parameters = inspect.signature(model.forward).parameters
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        self._has_logits_to_keep = "logits_to_keep" in parameters
        self._check_own_attention()
        # submodels may share one config; each is borrowed once
        submodels = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
        self._configs = list({id(submodel.config): submodel.config for submodel in submodels}.values())
        self.cache = TreeCache(self.windows)
        self._in_flight: dict[int, TokenTree] = {}
        self._rows: dict[int, list[int]] = {}  # row in flight of every node, per lane
        #: what a drafter inside this model has run already of the trees to come
        self.head_start: HeadStart | None = None
        self._first_layers = 0  # so many layers have rows of their own, because a head start ran them
        self._first_rows: dict[int, list[int]] = {}  # row in flight of every node in those
        self._tokens: dict[int, list[int]] = {}  # committed tokens per lane, kept only if the cache may start over
        self._may_pass: set[int] = set()  # lanes that may grow past the rotary boundary
        self._long: set[int] = set()  # lanes whose cache was computed past the rotary boundary
        if getattr(model.config, "model_type", None) not in TESTED_MODEL_TYPES:
            probe(self)

    def _check_own_attention(self) -> None:
        if self.replaces_attention:
            return
        name = getattr(self.model.config, "model_type", type(self.model).__name__)
        own = self.model.config._attn_implementation
        if own not in ("sdpa", "eager"):
            raise UnsupportedModel(
                name,
                f"its attention cannot be replaced and {own!r} takes no 4-D mask",
                "load it with attn_implementation='sdpa'",
            )
        if len(set(self.windows)) > 1:
            raise UnsupportedModel(name, "its attention cannot be replaced and its layers have different windows")

    def for_drafting(self) -> HuggingFaceTarget:
        """See `GrowingTarget.for_drafting`."""
        return HuggingFaceTarget(self.model, attention=self._attention, prefill_chunk=self.prefill_chunk)

    # lanes

    def open(self, expected_rows: int = 0, longest: int | None = None) -> int:
        """See `Target.open`."""
        check_eval_mode(self.model)
        may_pass = self._rotary is not None and (longest is None or longest > self._rotary.boundary)
        if (may_pass and self.cache.lanes) or self._may_pass:
            assert self._rotary is not None
            raise UnsupportedModel(
                self.model.config.model_type,
                f"once a row passes {self._rotary.boundary} tokens, its rotary frequencies change for the whole batch, "
                "and one of these requests may get there",
                "run such prompts one at a time, or lower max_new_tokens",
            )
        lane = self.cache.open(expected_rows)
        if may_pass:
            self._may_pass.add(lane)
        if self._rotary is not None and self._rotary.starts_over:
            self._tokens[lane] = []
        return lane

    def free(self, lane: int) -> None:
        """See `Target.free`."""
        self.cache.free(lane)
        self._tokens.pop(lane, None)
        self._long.discard(lane)
        self._may_pass.discard(lane)

    def length(self, lane: int) -> int:
        """See `Target.length`."""
        return self.cache.length(lane)

    def shorten(self, lane: int, length: int) -> None:
        """Forgets committed tokens from ``length`` on, for drafters whose text is retokenised; see `TreeCache.shorten`.

        Frequencies that changed with the length are not turned back: past a rotary boundary everything is forgotten.
        """
        passed = self._rotary is not None and self.cache.length(lane) > self._rotary.boundary
        self.cache.shorten(lane, 0 if passed else length)
        if lane in self._tokens:
            self._tokens[lane] = self._tokens[lane][: self.cache.length(lane)]
        if passed:
            self._long.discard(lane)

    def depth_limit(self, lane: int) -> int | None:
        """See `Target.depth_limit`."""
        length = self.cache.length(lane)
        limits = []
        if self.context_limit is not None:
            limits.append(self.context_limit - 1 - length)
        if self._rotary is not None:
            limit = self._rotary.depth_limit(length)
            if limit is not None:
                limits.append(limit)
        return max(0, min(limits)) if limits else None

    @property
    def solo_beyond(self) -> int | None:
        """See `Target.solo_beyond`."""
        return None if self._rotary is None else self._rotary.boundary

    def limit_rows(self, rows: int) -> None:
        """See `Target.limit_rows`."""
        self.cache.limit_rows(rows)

    def snapshot(self, lane: int) -> Snapshot:
        """See `Target.snapshot`."""
        return self.cache.snapshot(lane)

    def restore(self, lane: int, snapshot: Snapshot, tokens: Sequence[int]) -> None:
        """See `Target.restore`."""
        self.cache.restore(lane, snapshot, len(tokens))
        if lane in self._tokens:
            self._tokens[lane] = list(tokens)

    # forwards

    @torch.no_grad()
    def prefill(self, lane: int, prompt: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.prefill`. Causal attention, no full mask, logits of the last position only."""
        tokens = list(prompt[:-1])
        if self._rotary is not None and len(prompt) > self._rotary.boundary:
            # plain decoding turns the whole prompt, root included, with the frequencies of its full length
            self._long.add(lane)
            parts = [self._read(lane, list(prompt), len(tokens), feature_layers)]
        else:
            chunks = [tokens[i : i + self.prefill_chunk] for i in range(0, len(tokens), self.prefill_chunk)]
            parts = [self._read(lane, chunk, len(chunk), feature_layers) for chunk in chunks]
        if lane in self._tokens:
            self._tokens[lane] = tokens
        return {layer: torch.cat([part[layer] for part in parts]) for layer in feature_layers if parts}

    @torch.no_grad()
    def feed(self, lane: int, tokens: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.feed`."""
        if self.solo_beyond is not None and self.length(lane) + len(tokens) >= self.solo_beyond:
            raise ValueError(f"a prompt that passes {self.solo_beyond} tokens cannot be fed in parts: prefill it whole")
        features = self._read(lane, list(tokens), len(tokens), feature_layers)
        if lane in self._tokens:
            self._tokens[lane].extend(tokens)
        return features

    def _read(self, lane: int, tokens: list[int], keep: int, feature_layers: tuple[int, ...]) -> dict[int, Tensor]:
        """One forward of a chain behind the lane's committed tokens; commits the first ``keep``."""
        done, slot = self.cache.length(lane), self.cache.slot(lane)
        output = self._run(
            torch.tensor([tokens], device=self.device),
            torch.arange(done, done + len(tokens), device=self.device)[None],
            TreeLayout.chain(len(tokens), device=self.device),
            range(slot, slot + 1),
            feature_layers,
            last_logits_only=True,
        )
        self.cache.commit({lane: range(keep)})
        return {layer: output.hidden_states[layer][0, :keep] for layer in feature_layers}

    @torch.no_grad()
    def forward(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...] = (),
        wanted: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, TargetOutput]:
        """See `Target.forward` and `GrowingTarget.forward`.

        Lanes that are open but not named ride along with a lone root that is rolled back. What a head start has run of
        these trees is not run again. Trees of different sizes go through the model packed into one row, where it allows
        that: they cost by their nodes, not by the largest tree.
        """
        if self.head_start is not None:
            if self.head_start.covers(trees, feature_layers):
                return _wanted_only(self.head_start.finish(trees, feature_layers), wanted)
            self.rollback()
        return _wanted_only(self.begin(trees, feature_layers), wanted)

    @torch.no_grad()
    def begin(
        self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...] = (), part: Part | None = None
    ) -> dict[int, TargetOutput]:
        """`forward` from scratch, through all layers or a part that holds the first one."""
        for lane, tree in trees.items():
            self._check_depth(lane, tree)
            self._start_over_if_needed(lane, tree)
        slots = [self.cache.slot(lane) for lane in trees]
        return self._score(trees, feature_layers, range(min(slots), max(slots) + 1), part)

    @torch.no_grad()
    def complete(
        self,
        trees: Mapping[int, TokenTree],
        first_rows: Mapping[int, Sequence[int]],
        feature_layers: tuple[int, ...],
        part: Part,
    ) -> dict[int, TargetOutput]:
        """The last layers of trees whose first layers were run before.

        Args:
            trees: lanes that took part in the forwards before.
            first_rows: per lane, the row in flight of each node in the first layers.
            feature_layers: as in `forward`, none below those of ``part``.
            part: the last layers, none of which has rows in flight.
        """
        for lane, tree in trees.items():
            self._check_depth(lane, tree)
        outputs = self._score(trees, feature_layers, None, part)
        self._first_layers = part.runs[0]
        self._first_rows = {lane: list(rows) for lane, rows in first_rows.items()}
        return outputs

    def _score(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...],
        slots: range | None,  # None stays with those being written
        part: Part | None,
    ) -> dict[int, TargetOutput]:
        span = self.cache.layers[0].writing if slots is None else slots
        lanes = self.cache.lanes[span.start : span.stop]
        placeholder = TokenTree((0,), (-1,))
        rows = [trees.get(lane, placeholder) for lane in lanes]
        layout = TreeLayout.from_trees(rows, device=self.device)
        ids, positions = self._inputs(lanes, [tree.tokens for tree in rows], layout)  # [B, N] each
        outputs = self._run_packed(ids, positions, layout, slots, feature_layers) if part is None else None
        if outputs is None:
            output = self._run(ids, positions, layout, slots, feature_layers, part=part)
            outputs = [self._lane_output(output, row, len(tree), feature_layers, part) for row, tree in enumerate(rows)]
        self._in_flight = dict(trees)
        self._rows = {lane: list(range(len(tree))) for lane, tree in trees.items()}
        return {lane: output for lane, output in zip(lanes, outputs, strict=True) if lane in trees}

    def _run_packed(
        self,
        ids: Tensor,  # [B, N]
        positions: Tensor,  # [B, N]
        layout: TreeLayout,
        slots: range | None,
        feature_layers: tuple[int, ...],
    ) -> list[TargetOutput] | None:
        """One forward over the real nodes alone; None where that saves nothing or the model cannot do it."""
        if not self.replaces_attention or sum(layout.nodes) == layout.batch * layout.width:
            return None
        packing = Packing(layout.nodes, self.device)
        row, places = (packing.gather(rows[:, None, :, None])[:, 0, :, 0] for rows in (ids, positions))  # [1, T] each
        try:
            output = self._run(row, places, layout, slots, feature_layers, packing=packing)
        except StepMissing:
            self.replaces_attention = False
            self._check_own_attention()
            return None
        return _packed_outputs(output, layout.nodes, feature_layers)

    @torch.no_grad()
    def extend(
        self,
        trees: Mapping[int, TokenTree],
        feature_layers: tuple[int, ...] = (),
        wanted: Mapping[int, Sequence[int]] | None = None,
        part: Part | None = None,
    ) -> dict[int, TargetOutput]:
        """Scores only the nodes that trees have grown by since `forward`; for drafters that grow level by level.

        Args:
            trees: for lanes in flight, trees whose first nodes are the ones already in flight. A lane that is not named
                does not grow.
            feature_layers: as in `forward`.
            wanted: as in `GrowingTarget.extend`.
            part: layers to run, the first one among them; those left out lag behind and are not grown by later calls.

        Returns:
            per named lane the output of its new nodes, in node order.
        """
        if self._first_layers:
            raise RuntimeError(
                "a tree whose first layers were run by its drafter cannot grow; commit or roll back first"
            )
        known = self.cache.layers[0].in_flight
        span = self.cache.layers[0].writing
        lanes = self.cache.lanes[span.start : span.stop]
        placeholder = TokenTree((0,), (-1,))
        grown = [trees.get(lane, self._in_flight.get(lane, placeholder)) for lane in lanes]
        rows = [self._rows.get(lane, [0]) for lane in lanes]
        for lane, tree in trees.items():
            before = self._in_flight[lane]
            if tree.tokens[: len(before)] != before.tokens or tree.parents[: len(before)] != before.parents:
                raise ValueError(f"the tree of lane {lane} does not begin with the nodes in flight")
            self._check_depth(lane, tree)
        layout = GrownLayout(grown, rows, known, device=self.device)
        fresh = [tree.tokens[len(at) :] for tree, at in zip(grown, rows, strict=True)]
        output = self._run(*self._inputs(lanes, fresh, layout), layout, None, feature_layers, part=part)
        first = {lane: len(self._rows[lane]) for lane in trees}
        for lane, tree in trees.items():
            new = len(tree) - len(self._rows[lane])
            self._rows[lane].extend(range(known, known + new))
            self._in_flight[lane] = tree
        outputs = {
            lane: self._lane_output(output, row, len(fresh[row]), feature_layers, part)
            for row, lane in enumerate(lanes)
            if lane in trees
        }
        return _wanted_only(outputs, wanted, first)

    def rows_in_flight(self, lane: int) -> list[int]:
        """The row in flight of every node of a lane's tree, in the layers that ran last."""
        return list(self._rows[lane])

    def _inputs(
        self, lanes: Sequence[int], tokens: Sequence[Sequence[int]], layout: TreeLayout
    ) -> tuple[Tensor, Tensor]:
        """Token ids and positions ``[B, N]``. Padding takes any token: its row is finite and nobody sees it."""
        starts = torch.tensor([[self.cache.length(lane)] for lane in lanes], device=self.device)
        ids = [[*row, *([0] * (layout.width - len(row)))] for row in tokens]
        return torch.tensor(ids, device=self.device), starts + layout.depth

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """See `Target.commit`."""
        split, last = self._first_layers, len(self.windows)
        groups = [(range(split, last), _chosen(self._rows, paths))]
        if split:
            groups.append((range(split), _chosen(self._first_rows, paths)))
        self.cache.commit_by_layer(groups)
        for lane, path in paths.items():
            if lane in self._tokens:
                self._tokens[lane].extend(self._in_flight[lane].tokens[node] for node in path)
        self._forget_flight()

    def rollback(self) -> None:
        """See `Target.rollback`."""
        self.cache.rollback()
        self._forget_flight()

    def scrub(self, lane: int) -> None:
        """See `Target.scrub`."""
        self.cache.scrub(lane)

    def clear(self, lane: int) -> None:
        """See `Target.clear`."""
        self.cache.clear(lane)
        if lane in self._tokens:
            self._tokens[lane] = []

    def _forget_flight(self) -> None:
        self._in_flight, self._rows, self._first_rows = {}, {}, {}
        self._first_layers = 0
        self.head_start = None

    def _check_depth(self, lane: int, tree: TokenTree) -> None:
        limit = self.depth_limit(lane)
        if limit is not None and tree.height > limit:
            raise ValueError(
                f"the tree of lane {lane} is {tree.height} deep but only {limit} positions are left below its root at "
                f"position {self.cache.length(lane)}"
            )

    def _start_over_if_needed(self, lane: int, tree: TokenTree) -> None:
        """At the boundary of ``longrope`` plain decoding recomputes the cache; so do we."""
        if self._rotary is None or not self._rotary.starts_over or lane in self._long:
            return
        if self.cache.length(lane) >= self._rotary.boundary:
            tokens = self._tokens[lane]
            self.cache.clear(lane)
            self.prefill(lane, [*tokens, tree.tokens[0]])

    def _run(
        self,
        input_ids: Tensor,  # [B, N], or packed [1, T]
        position_ids: Tensor,  # likewise
        layout: TreeLayout,
        slots: range | None,  # None grows the tree in flight
        feature_layers: tuple[int, ...],
        last_logits_only: bool = False,
        part: Part | None = None,
        packing: Packing | None = None,
    ) -> Any:
        runs = part.runs if part is not None else tuple(range(len(self.windows)))
        before = self.cache.layers[runs[0]].in_flight
        if slots is not None:
            self.cache.begin(slots)
        self.cache.expect(packing)
        step = AttentionStep(layout, self.cache.committed_rows, self.windows.__getitem__, self._backend, packing)
        arguments: dict[str, Any] = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            self._cache_keyword: self.cache,
            "use_cache": True,
            "return_dict": True,
        }
        if feature_layers:
            arguments["output_hidden_states"] = True
        if self._has_logits_to_keep:
            arguments["logits_to_keep"] = 1 if last_logits_only else 0
            if part is not None and not part.wants_logits:
                arguments["logits_to_keep"] = torch.empty(0, dtype=torch.long, device=self.device)
        try:
            with self._borrowed(part):
                if self.replaces_attention:
                    output = self.model(**arguments, **{STEP_KEYWORD: step})
                else:
                    output = self.model(**arguments, attention_mask=self._dense_mask(layout, before))
            self._check_layers(step, before + layout.width, runs)
        except StepMissing:
            self.cache.rollback()
            if packing is not None:
                raise
            self.replaces_attention = False
            self._check_own_attention()
            return self._run(input_ids, position_ids, layout, slots, feature_layers, last_logits_only, part)
        except BaseException:
            # an interrupted forward leaves some layers written and others not
            self.rollback()
            raise
        return output

    def _check_layers(self, step: AttentionStep, width: int, runs: Sequence[int]) -> None:
        name = self.model.config.model_type
        idle = [index for index in runs if self.cache.layers[index].in_flight != width]
        if idle:
            raise UnsupportedModel(name, f"layers {idle} wrote no keys and values (a recurrent or a shared state)")
        if self.replaces_attention and step.layers_seen != list(runs):
            raise UnsupportedModel(
                name, f"tree attention ran for layers {step.layers_seen} instead of once for each of {len(runs)}"
            )

    def _dense_mask(self, layout: TreeLayout, in_flight: int) -> Tensor:
        """The tree as an additive mask ``[B, 1, N, S + N]`` for a model that keeps its own attention."""
        committed = self.cache.committed_rows(0)
        slots = max(committed) + in_flight
        visible = layout.mask(committed, slots, self.windows[0])[:, None]  # [B, 1, N, S + N]
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=self.device)
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)

    def _lane_output(
        self, output: Any, row: int, nodes: int, feature_layers: tuple[int, ...], part: Part | None
    ) -> TargetOutput:
        # the last layers alone report their own hidden states only: the end of the list is the same
        back = 0 if part is None or part.runs[0] == 0 else len(self.windows) + 1
        features = {layer: output.hidden_states[layer - back][row, :nodes] for layer in feature_layers}
        return TargetOutput(output.logits[row, :nodes], features)

    @contextmanager
    def _borrowed(self, part: Part | None) -> Iterator[None]:
        """The model as the forward needs it; put back on the way out, whatever happens."""
        configs = []
        if self.replaces_attention:
            name = register()
            configs = [(config, config._attn_implementation_internal) for config in self._configs]
            for config, _ in configs:
                config._attn_implementation_internal = name
        try:
            with ExitStack() as borrowed:
                if self._rotary is not None:
                    borrowed.enter_context(self._rotary.restored())
                if part is not None:
                    borrowed.enter_context(part.installed())
                yield
        finally:
            for config, own in configs:
                config._attn_implementation_internal = own


def _packed_outputs(output: Any, nodes: Sequence[int], feature_layers: tuple[int, ...]) -> list[TargetOutput]:
    """What each lane gets of a packed forward: views of its nodes."""
    logits = output.logits[0].split(list(nodes))  # [n, V] each
    features = {layer: output.hidden_states[layer][0].split(list(nodes)) for layer in feature_layers}
    return [TargetOutput(rows, {layer: parts[i] for layer, parts in features.items()}) for i, rows in enumerate(logits)]


def _wanted_only(
    outputs: dict[int, TargetOutput],
    wanted: Mapping[int, Sequence[int]] | None,
    first: Mapping[int, int] | None = None,
) -> dict[int, TargetOutput]:
    """The outputs with the logits of the nodes that are wanted; ``first`` is each lane's first node in its output."""
    if wanted is None:
        return outputs
    chosen = {lane: [node - (first[lane] if first else 0) for node in nodes] for lane, nodes in wanted.items()}
    return {lane: TargetOutput(found.logits[chosen[lane]], found.features) for lane, found in outputs.items()}


def _chosen(rows: Mapping[int, Sequence[int]], paths: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The rows of each lane's path."""
    return {lane: [rows[lane][node] for node in path] for lane, path in paths.items()}
