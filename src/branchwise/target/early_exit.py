"""Drafting with some of the target's own layers, and verification that does not run the first of them again.

With layers E.. left out, the layers before E compute for a candidate exactly what the target computes for it: their
keys and values are the target's own. So of one step the cache and the hidden states look like this (N nodes to verify,
of which some were run while drafting, some never, and some that were run are not to be verified):

    layers 0 .. E-1    | committed | run while drafting, level by level | the others of the N |     begin, grow, finish
    layers E .. L-1    | committed | the N nodes of the tree to verify |                            finish

Layers above E that the drafter runs all the same (a set of skipped layers with a gap) see hidden states that are not
the target's; their rows are taken back before verification. Knows trees, rows and hidden states; does not know how
candidates are chosen.

Sources: LayerSkip (Elhoushi et al. 2024, section 4.3), Draft & Verify (Zhang et al. 2023), SWIFT (Xia et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..tree import TokenTree
from .huggingface import HuggingFaceTarget
from .layers import Catch, Insert, Part, StandIn, UnsupportedSplit, Watch, find_layers
from .probe import TOLERANCE
from .protocol import TargetOutput

#: hidden states of layer E's input ``[B, N, h]`` -> of what the final norm gets, same shape
Adapter = Callable[[Tensor], Tensor]


class EarlyExit:
    """A target that drafts for itself.

    Args:
        target: the model; nothing about it changes.
        skipped: layers that drafting leaves out, rising; at least one, and not all.
        reuse: whether verification goes on from what drafting has computed; otherwise both run on their own.
        adapter: takes the place of the first skipped layer while drafting.

    Attributes:
        shared: so many first layers draft exactly as the target computes.

    Raises:
        ValueError: a layer does not exist, or layer 0 or none at all is skipped.
        UnsupportedSplit: the model's layers cannot be run apart.
    """

    def __init__(
        self,
        target: HuggingFaceTarget,
        skipped: Sequence[int],
        *,
        reuse: bool = True,
        adapter: Adapter | None = None,
    ) -> None:
        count = len(target.windows)
        _check_skipped(skipped, count)
        self.target = target
        self.reuse = reuse
        self.shared = skipped[0]
        layers = find_layers(target.model, count)
        own = layers.own
        watch = Watch(own[0], in_tuple=False)
        whole = _whole_logits(target, Part(layers, tuple(range(count)), {0: watch}))
        in_tuple = watch.saw_tuple
        self._drafted = Catch(own[self.shared], in_tuple, adapter)
        self._caught_up = Catch(own[self.shared], in_tuple)
        self._insert = Insert(own[self.shared - 1], in_tuple)

        def part(runs: Sequence[int], edge: int, special: StandIn, wants_logits: bool = True) -> Part:
            left_out = sorted(set(range(count)) - set(runs))
            stand_ins = {index: StandIn(own[index], in_tuple) for index in left_out}
            return Part(layers, tuple(runs), {**stand_ins, edge: special}, wants_logits)

        drafting = sorted(set(range(count)) - set(skipped))
        self._drafting = part(drafting, self.shared, self._drafted)
        self._below = part(range(self.shared), self.shared, self._caught_up, wants_logits=False)
        self._above = part(range(self.shared, count), self.shared - 1, self._insert)
        _check_split(self, whole)

    def begin(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...] = ()) -> dict[int, Tensor]:
        """Runs roots and what is known to follow them, all lanes of the step together.

        Args:
            trees: per lane, mostly of one node; a lane that does not draft gives its lone root.
            feature_layers: hidden states that verification will be asked for.

        Returns:
            per lane the drafting layers' logits ``[n, V]``.
        """
        below = tuple(layer for layer in feature_layers if layer < self.shared) if self.reuse else ()
        outputs = self.target.begin(trees, below, self._drafting)
        if self.reuse:
            self.target.head_start = HeadStart(self, below)
            self.target.head_start.take(trees, outputs, self._drafted.take())
        return {lane: output.logits for lane, output in outputs.items()}

    def grow(self, trees: Mapping[int, TokenTree]) -> dict[int, Tensor]:
        """Runs the nodes that trees have grown by; per named lane their logits ``[n, V]``."""
        start = self.target.head_start
        outputs = self.target.extend(trees, () if start is None else start.feature_layers, part=self._drafting)
        if start is not None:
            start.take(trees, outputs, self._drafted.take())
        return {lane: output.logits for lane, output in outputs.items()}

    def end(self) -> None:
        """Drafting is over: what verification cannot use is dropped."""
        if self.reuse:
            # layers above the first skipped one may have drafted, on hidden states that are not the target's
            self.target.cache.take_back(range(self.shared, len(self.target.windows)))
        else:
            self.target.rollback()

    # for HeadStart

    def run_below(
        self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...]
    ) -> tuple[dict[int, TargetOutput], Tensor]:
        """Runs the nodes that trees have grown by through the shared layers only; also hidden states ``[B, N, h]``."""
        outputs = self.target.extend(trees, feature_layers, part=self._below)
        return outputs, self._caught_up.take()

    def run_above(
        self,
        trees: Mapping[int, TokenTree],
        first_rows: Mapping[int, Sequence[int]],
        hidden: Tensor,  # [B, N, h]
        feature_layers: tuple[int, ...],
    ) -> dict[int, TargetOutput]:
        """Runs trees through the other layers, from the hidden states of the shared ones."""
        self._insert.given = hidden
        return self.target.complete(trees, first_rows, feature_layers, self._above)


@dataclass
class _Lane:
    """What was run of one lane's tree: the nodes in run order, and per forward their hidden states ``[n, h]``."""

    tree: TokenTree
    hidden: list[Tensor] = field(default_factory=list)
    features: dict[int, list[Tensor]] = field(default_factory=dict)


class HeadStart:
    """What drafting leaves behind for the verification of one step.

    Attributes:
        feature_layers: layers below the exit whose hidden states were kept.
    """

    def __init__(self, early: EarlyExit, feature_layers: tuple[int, ...]) -> None:
        self.feature_layers = feature_layers
        self._early = early
        self._lanes: dict[int, _Lane] = {}

    def take(self, trees: Mapping[int, TokenTree], outputs: Mapping[int, TargetOutput], caught: Tensor) -> None:
        """Keeps what a forward computed for the newest nodes of ``trees``; ``caught`` is ``[B, N, h]``."""
        slots = {lane: row for row, lane in enumerate(self._span())}
        for lane, tree in trees.items():
            known = self._lanes.setdefault(lane, _Lane(tree))
            known.tree = tree
            known.hidden.append(caught[slots[lane], : len(tree) - sum(map(len, known.hidden))])
            for layer in self.feature_layers:
                known.features.setdefault(layer, []).append(outputs[lane].features[layer])

    def covers(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...]) -> bool:
        """Whether these trees can go on from here: every lane was begun at this root, every feature was kept.

        And whether all that was run is finite: a row of NaN that no tree keeps would otherwise lie unseen among the
        stale rows of a lane that is shorter than others, where attention's weight of zero does not silence it.
        """
        if not all(bool(part.isfinite().all()) for known in self._lanes.values() for part in known.hidden):
            return False
        kept = set(self.feature_layers)
        return all(layer >= self._early.shared or layer in kept for layer in feature_layers) and all(
            lane in self._lanes and tree.tokens[0] == self._lanes[lane].tree.tokens[0] for lane, tree in trees.items()
        )

    def finish(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...]) -> dict[int, TargetOutput]:
        """Scores trees: nodes that were never run catch up first, then all of them run through the other layers."""
        merged = {lane: merge(self._lanes[lane].tree, tree) for lane, tree in trees.items()}
        grown = {lane: tree for lane, (tree, _) in merged.items() if len(tree) > len(self._lanes[lane].tree)}
        if grown:
            self.take(grown, *self._early.run_below(grown, self.feature_layers))
        nodes = {lane: at for lane, (_, at) in merged.items()}
        rows = {lane: self._early.target.rows_in_flight(lane) for lane in trees}
        first_rows = {lane: [rows[lane][node] for node in at] for lane, at in nodes.items()}
        above = tuple(layer for layer in feature_layers if layer >= self._early.shared)
        outputs = self._early.run_above(trees, first_rows, self._hidden(nodes), above)
        return {lane: self._with_features(lane, nodes[lane], output) for lane, output in outputs.items()}

    def _hidden(self, nodes: Mapping[int, Sequence[int]]) -> Tensor:
        """Hidden states of the nodes ``[B, N, h]``; zeros in padding and for lanes that only ride along."""
        parts = {lane: torch.cat(self._lanes[lane].hidden)[list(at)] for lane, at in nodes.items()}
        span = self._span()
        example = next(iter(parts.values()))
        hidden = example.new_zeros(len(span), max(map(len, parts.values())), example.shape[1])
        for row, lane in enumerate(span):
            if lane in parts:
                hidden[row, : len(parts[lane])] = parts[lane]
        return hidden

    def _with_features(self, lane: int, at: Sequence[int], output: TargetOutput) -> TargetOutput:
        features = {layer: torch.cat(parts)[list(at)] for layer, parts in self._lanes[lane].features.items()}
        return TargetOutput(output.logits, {**features, **output.features})

    def _span(self) -> tuple[int, ...]:
        """Lanes of the step's forwards, in batch order."""
        cache = self._early.target.cache
        slots = cache.layers[0].writing
        return cache.lanes[slots.start : slots.stop]


def merge(run: TokenTree, tree: TokenTree) -> tuple[TokenTree, list[int]]:
    """``run`` grown by the nodes of ``tree`` that it lacks, and the place of every node of ``tree`` in it.

    A node is known by its path; below a node that was never run nothing was run either. Tokens are in brackets:

        run  0 (5)            tree  0 (5)             grown  0 (5)           places of the tree's nodes: 0, 3, 1, 4
             |- 1 (8)               |- 1 (4)                 |- 1 (8)
             |  `- 2 (9)            `- 2 (8)                 |  |- 2 (9)
             `- 3 (4)                  `- 3 (7)              |  `- 4 (7)
                                                             `- 3 (4)
    """
    known = {(parent, token): node for node, (parent, token) in enumerate(zip(run.parents, run.tokens, strict=True))}
    tokens, parents = list(run.tokens), list(run.parents)
    places: list[int] = []
    for parent, token in zip(tree.parents, tree.tokens, strict=True):
        key = (places[parent] if parent >= 0 else -1, token)
        if key not in known:
            known[key] = len(tokens)
            tokens.append(token)
            parents.append(key[0])
        places.append(known[key])
    return TokenTree(tokens, parents), places


# checks at attach

#: two siblings, one child under the first; while drafting, node 2 is run for nothing and node 3 is not run
_PROBE_PARENTS = (-1, 0, 0, 1)


def _check_skipped(skipped: Sequence[int], count: int) -> None:
    if not skipped:
        raise ValueError("drafting must skip at least one layer, got none: name layers to skip or a layer to exit at")
    if list(skipped) != sorted(set(skipped)) or not 1 <= skipped[0] <= skipped[-1] < count:
        raise ValueError(
            f"skipped layers must be distinct numbers from 1 to {count - 1} (layer 0 always drafts), got "
            f"{list(skipped)}"
        )


@contextmanager
def _probe_lane(target: HuggingFaceTarget) -> Iterator[tuple[int, TokenTree]]:
    """A lane with two committed tokens, and a tree to run on it."""
    tokens = [token % target.vocab_size for token in (3, 1, 2, 5)]
    lane = target.open(expected_rows=8, longest=8)
    try:
        target.prefill(lane, [*tokens[1:3], tokens[0]])
        yield lane, TokenTree(tokens, _PROBE_PARENTS)
    finally:
        target.rollback()
        target.free(lane)


def _whole_logits(target: HuggingFaceTarget, part: Part) -> Tensor:
    """Logits ``[4, V]`` of the probe's tree in one forward through all layers."""
    with _probe_lane(target) as (lane, tree):
        return target.begin({lane: tree}, (), part)[lane].logits


def _check_split(early: EarlyExit, whole: Tensor) -> None:
    """Raises `UnsupportedSplit` when drafting and verification in parts give other logits than one whole forward."""
    target = early.target
    with _probe_lane(target) as (lane, tree):
        root = TokenTree(tree.tokens[:1], tree.parents[:1])
        early.begin({lane: root})
        early.grow({lane: TokenTree(tree.tokens[:3], tree.parents[:3])})
        early.end()
        try:
            logits = target.forward({lane: tree})[lane].logits
        except RuntimeError as fault:
            raise UnsupportedSplit(target.model.config.model_type, f"run in two parts they fail ({fault})") from fault
    spread = float((whole.max() - whole.min()).abs()) + 1e-6
    error = float((logits - whole).abs().max()) / spread
    if not error <= TOLERANCE.get(whole.dtype, 1e-2):
        raise UnsupportedSplit(
            target.model.config.model_type,
            f"run in two parts they give other logits than in one (relative difference {error:.1e})",
        )
