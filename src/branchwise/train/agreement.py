"""Whether a head drafts the same after something was done to it: both versions along held-out text, draft by draft.

Knows drafters and texts; knows no head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from ..draft.protocol import DraftContext, Drafter
from ..verify.proposal import DraftTree
from .corpus import Piece
from .features import FeatureSource
from .shards import ANSWER

#: tokens from one draft to the next, nodes of a draft, root included, and drafts that are enough
STRIDE = 3
BUDGET = 17
MOST_DRAFTS = 1000


@dataclass(frozen=True)
class Agreement:
    """Two drafters compared.

    Attributes:
        drafts: how many.
        first: share whose first choice for the next token is the same.
        nodes: share of the first one's nodes that are in the second one's trees.
        right_before, right_after: share of drafts of each whose first choice was the text's next token.
        depth_before, depth_after: tokens of the text that a tree held in a row, on average.
    """

    drafts: int
    first: float
    nodes: float
    right_before: float
    right_after: float
    depth_before: float
    depth_after: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def line(self) -> str:
        """For people."""
        return (
            f"{self.first:.2%} of {self.drafts} first choices and {self.nodes:.2%} of all nodes are the same; first "
            f"choices right {self.right_before:.2%} before, {self.right_after:.2%} after; tokens held in a row "
            f"{self.depth_before:.3f} before, {self.depth_after:.3f} after"
        )


def agreement(before: Drafter, after: Drafter, source: FeatureSource, pieces: Sequence[Piece]) -> Agreement:
    """Drafts of both along the answers of texts, with the target's own features.

    Raises:
        ValueError: no text has an answer that is long enough.
    """
    drafts = same_first = right_before = right_after = nodes = shared = depth_before = depth_after = 0
    for piece in pieces:
        if drafts >= MOST_DRAFTS:
            break
        tokens = piece.sequence.tokens.tolist()
        features = dict(zip(source.layers, source.get([piece])[0].unbind(dim=1), strict=True))  # {layer: [L, h]}
        begin = piece.sequence.roles.tolist().index(ANSWER) if ANSWER in piece.sequence.roles else len(tokens)
        stops = range(max(2, begin), len(tokens), STRIDE)
        trees = [list(_drafts_along(drafter, tokens, features, stops)) for drafter in (before, after)]
        for stop, one, other in zip(stops, *trees, strict=True):
            firsts = [_first(draft) for draft in (one, other)]
            paths = [_paths(draft) for draft in (one, other)]
            drafts += 1
            same_first += firsts[0] == firsts[1]
            right_before += firsts[0] == tokens[stop]
            right_after += firsts[1] == tokens[stop]
            nodes += len(paths[0])
            shared += len(paths[0] & paths[1])
            depth_before += _held(paths[0], tokens[stop:])
            depth_after += _held(paths[1], tokens[stop:])
    if not drafts or not nodes:
        raise ValueError("there is no held-out answer to compare drafts on: write more data")
    return Agreement(
        drafts, same_first / drafts, shared / nodes, right_before / drafts, right_after / drafts,
        depth_before / drafts, depth_after / drafts,
    )  # fmt: skip


def _drafts_along(
    drafter: Drafter, tokens: Sequence[int], features: dict[int, Tensor], stops: Sequence[int]
) -> Iterator[DraftTree]:
    """The draft for what follows ``tokens[:stop]``, for every stop."""
    if not stops:
        return
    context = DraftContext([], vocab_size=2**31)
    state, read = None, 0
    try:
        for stop in stops:
            context.tokens = list(tokens[:stop])
            # of all committed tokens but the last
            context.features = {layer: features[layer][read : stop - 1] for layer in drafter.feature_layers}
            read = stop - 1
            if state is None:
                state = drafter.start(context)
            yield drafter.propose([state], [context], [BUDGET])[0]
    finally:
        if state is not None and hasattr(drafter, "finish"):
            drafter.finish(state)


def _first(draft: DraftTree) -> int | None:
    return draft.tree.tokens[1] if len(draft.tree) > 1 else None


def _paths(draft: DraftTree) -> set[tuple[int, ...]]:
    tree = draft.tree
    return {tuple(tree.tokens[at] for at in tree.path(node)[1:]) for node in range(1, len(tree))}


def _held(paths: set[tuple[int, ...]], following: Sequence[int]) -> int:
    depth = 0
    while depth < len(following) and tuple(following[: depth + 1]) in paths:
        depth += 1
    return depth
