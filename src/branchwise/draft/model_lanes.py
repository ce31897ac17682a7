"""A small model's own cache, kept in step with the committed tokens of many lanes; one forward per level of all trees.

Knows lanes, paths and rows. Does not know the target, nor which paths are worth running.

The cache of a lane, between two steps, holds the committed tokens the model has seen; ``tokens[length:]`` (the bonus
token, accepted tokens it never ran because they were leaves or somebody else's drafts, and all tokens of steps in which
it was not asked) form the chain that its next tree grows from:

    cache  | committed, seen | chain: missing ... root | level 1 | level 2 | ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..target.protocol import GrowingTarget
from ..tree import TokenTree
from .best_first import Path

#: missing tokens that are run as one chain with the tree; more are read in pieces of this size before
CHAIN_TOKENS = 64


@dataclass
class ModelLane:
    """One lane: its place in the small model's cache, and which paths of the tree in flight were run.

    Attributes:
        number: of the cache's lane.
        chain: nodes of the chain in flight, root included; 0 when nothing is in flight.
        node_of: node of every path that was run.
    """

    number: int
    chain: int = 0
    node_of: dict[Path, int] = field(default_factory=dict)
    tree: TokenTree | None = None


class ModelLanes:
    """The small model with one lane per lane of the target.

    Ids that the small model does not know (tokens added to the target's vocabulary) are read as its end-of-text token.

    Args:
        model: the small model as a target of its own, which nobody else has lanes in.
    """

    def __init__(self, model: GrowingTarget) -> None:
        self.model = model
        ends = getattr(model.model.config.get_text_config(decoder=True), "eos_token_id", None)
        self._stand_in = int(next(iter(ends), 0) if isinstance(ends, (list, tuple)) else ends or 0)

    def _readable(self, tokens: Sequence[int]) -> list[int]:
        return [token if token < self.model.vocab_size else self._stand_in for token in tokens]

    def open(self, tokens: Sequence[int], rows: int) -> ModelLane:
        """Reads a prompt, all of it but the last token and as far as the model's positions reach.

        Args:
            tokens: the prompt.
            rows: rows of a tree, a hint.
        """
        limit = self.model.context_limit
        known = self._readable(tokens if limit is None else tokens[:limit])
        number = self.model.open(len(known) + rows)
        try:
            self.model.prefill(number, known)
        except BaseException:
            self.model.free(number)
            raise
        return ModelLane(number)

    def close(self, lane: ModelLane) -> None:
        """Gives the lane back."""
        self.model.rollback()
        self.model.free(lane.number)

    def length(self, lane: ModelLane) -> int:
        """Committed tokens whose rows are in the cache."""
        return self.model.length(lane.number)

    def reach(self, lane: ModelLane, committed: int) -> int | None:
        """Deepest draft node below the last of ``committed`` tokens, or None when nothing bounds it; 0 for no draft.

        The deepest candidates are never run, so they may lie one position past the model's own limit.
        """
        most = self.model.context_limit
        if most is not None and committed > most:
            return 0
        limit = self.model.depth_limit(lane.number)
        if limit is None:
            return None
        return max(0, limit - (committed - 1 - self.length(lane)) + 1)

    def drop(self, lanes: Iterable[ModelLane]) -> None:
        """Forgets trees in flight that nobody will hear the end of."""
        self.model.rollback()
        for lane in lanes:
            lane.chain, lane.tree, lane.node_of = 0, None, {}

    def begin(self, lanes: Sequence[tuple[ModelLane, Sequence[int], Sequence[Path]]]) -> list[Tensor]:
        """Starts the trees of a step: one forward over the chains and the first paths of all given lanes.

        Args:
            lanes: lane, committed tokens and the paths that are wanted.

        Returns:
            per lane the logits ``[paths, V]``.
        """
        self._catch_up(lanes)
        for lane, tokens, paths in lanes:
            chain = self._readable(tokens[self.length(lane) :])
            lane.chain = len(chain)
            lane.node_of = {(): len(chain) - 1}
            lane.tree = self._grown(TokenTree.from_chain(chain[0], chain[1:]), lane.node_of, paths)
        outputs = self.model.forward(
            {lane.number: lane.tree for lane, _, _ in lanes if lane.tree is not None},
            wanted=_nodes_of((lane, paths) for lane, _, paths in lanes),
        )
        return [outputs[lane.number].logits for lane, _, _ in lanes]

    def _catch_up(self, lanes: Sequence[tuple[ModelLane, Sequence[int], Sequence[Path]]]) -> None:
        """Reads what is missing but for the last piece, so that a long gap does not make one huge tree."""
        while True:
            pieces: dict[int, TokenTree] = {}
            for lane, tokens, _ in lanes:
                missing = self._readable(tokens[self.length(lane) : -1])
                if len(missing) > CHAIN_TOKENS:
                    pieces[lane.number] = TokenTree.from_chain(missing[0], missing[1:CHAIN_TOKENS])
            if not pieces:
                return
            self.model.forward(pieces, wanted=dict.fromkeys(pieces, ()))
            self.model.commit({number: range(len(piece)) for number, piece in pieces.items()})

    def grow(self, lanes: Sequence[tuple[ModelLane, Sequence[Path]]]) -> list[Tensor]:
        """Runs more paths below those already run: one forward. Returns per lane the logits ``[paths, V]``."""
        grown = {}
        for lane, paths in lanes:
            assert lane.tree is not None, "grow follows begin"
            lane.tree = grown[lane.number] = self._grown(lane.tree, lane.node_of, paths)
        outputs = self.model.extend(grown, wanted=_nodes_of(lanes))
        return [outputs[lane.number].logits for lane, _ in lanes]

    def keep(self, lanes: Iterable[tuple[ModelLane, Sequence[int]]]) -> None:
        """Ends a step: keeps the rows of each chain and of the tokens below its root as far as they were run.

        Args:
            lanes: lane and the tokens that were committed below the root. Lanes without anything in flight are passed
                over; other lanes lose what they have in flight.
        """
        kept: dict[int, Sequence[int]] = {}
        for lane, tokens in lanes:
            if not lane.chain:
                continue
            rows = list(range(lane.chain))
            path: Path = ()
            for token in tokens:
                path = (*path, token)
                if path not in lane.node_of:
                    break
                rows.append(lane.node_of[path])
            kept[lane.number] = rows
            lane.chain, lane.tree, lane.node_of = 0, None, {}
        if kept:
            self.model.commit(kept)

    def shorten(self, lane: ModelLane, length: int) -> None:
        """Forgets committed tokens from ``length`` on (nothing in flight); maybe all, where a window has moved on."""
        self.model.shorten(lane.number, length)

    def _grown(self, tree: TokenTree, node_of: dict[Path, int], paths: Iterable[Path]) -> TokenTree:
        """The tree with the nodes of ``paths`` that it lacks appended, and entered into ``node_of``."""
        tokens, parents = list(tree.tokens), list(tree.parents)
        for path in paths:
            for depth in range(1, len(path) + 1):
                if path[:depth] not in node_of:
                    parents.append(node_of[path[: depth - 1]])
                    node_of[path[:depth]] = len(tokens)
                    tokens.append(path[depth - 1])
        return TokenTree(self._readable(tokens), parents)


def _nodes_of(lanes: Iterable[tuple[ModelLane, Sequence[Path]]]) -> dict[int, list[int]]:
    """The nodes of paths, by number of the lane."""
    return {lane.number: [lane.node_of[path] for path in paths] for lane, paths in lanes}
