"""Running a head for several lanes at once: its keys and values, and where every lane is.

Knows rows, levels and which hidden state a node continues. Does not know which tokens are drafted, nor why.

The rows of a lane in the head's cache are its committed tokens but the first: row t holds the target's features at
position t and the token at t + 1. A draft begins with the rows that are new since the last one, which stay; the rows of
drafted nodes come from the head's own output and are all given up again:

    cache  | committed | new committed ... root | level 1 | level 2 | ...
           |<------------ kept ---------------->|<--- rolled back ------>
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..attention.layout import TreeLayout
from ..attention.level_layout import LevelLayout
from ..attention.registry import get_backend
from ..cache import TreeCache
from ..tree import TokenTree
from .eagle_head import EagleHead

#: rows per forward while a prompt is read
CHUNK = 512


@dataclass(frozen=True, eq=False)
class CommittedRows:
    """Rows to be kept: tokens and the target's features at the position before each.

    Attributes:
        tokens: n of them.
        features: ``[n, F * h_t]``.
    """

    tokens: Sequence[int]
    features: Tensor


@dataclass(frozen=True, eq=False)
class _Level:
    """What the next level continues: one row of the batch per lane, in the cache's slot order.

    Attributes:
        lanes: of the batch.
        slots: theirs in the cache.
        hidden: ``[B, W, h]``.
        layout: None above the first level.
    """

    lanes: tuple[int, ...]
    slots: range
    hidden: Tensor
    layout: LevelLayout | None


class HeadLanes:
    """A head and its cache.

    Args:
        head: the head.
        attention: name of the attention backend, or ``"auto"``.
    """

    def __init__(self, head: EagleHead, attention: str = "auto") -> None:
        self.head = head
        self.cache = TreeCache([None] * head.config.layers)
        self._backend = get_backend(attention)
        self._scale = head.config.head_dim**-0.5
        weight = head.fc.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._last: _Level | None = None

    def open(self, expected_rows: int) -> int:
        """Takes a lane; see `TreeCache.open`."""
        return self.cache.open(expected_rows)

    def free(self, lane: int) -> None:
        """Gives the lane back, in whatever state a failure left it."""
        self.rollback()
        self.cache.free(lane)

    def rollback(self) -> None:
        """Forgets all drafted nodes."""
        self.cache.rollback()
        self._last = None

    def read(self, rows: Mapping[int, CommittedRows]) -> dict[int, Tensor]:
        """Adds committed rows, in one forward for all lanes.

        Returns:
            per lane the head's hidden state ``[1, h]`` at its last new row.
        """
        slots = [self.cache.slot(lane) for lane in rows]
        span = range(min(slots), max(slots) + 1)
        lanes = self.cache.lanes[span.start : span.stop]
        none = CommittedRows((0,), torch.zeros(1, self.head.feature_width, dtype=self._dtype, device=self._device))
        batch = [rows.get(lane, none) for lane in lanes]
        counts = [len(row.tokens) for row in batch]
        width = max(counts)
        if len(batch) == 1:
            layout = TreeLayout.chain(width, device=self._device)
        else:
            layout = TreeLayout.from_trees([_chain(count) for count in counts], device=self._device)
        tokens = [[*row.tokens, *([0] * (width - len(row.tokens)))] for row in batch]
        features = pad_sequence([row.features for row in batch], batch_first=True)  # [B, N, F * h_t]
        self.cache.begin(span)
        hidden = self._run(lanes, tokens, self.head.fuse(features), layout)  # [B, N, h]
        self.cache.commit({lane: range(len(given.tokens)) for lane, given in rows.items()})
        last = torch.stack([hidden[row, count - 1 : count] for row, count in enumerate(counts)])  # [B, 1, h]
        self._last = _Level(lanes, span, last, None)
        return {lane: last[row] for row, lane in enumerate(lanes) if lane in rows}

    def extend(self, nodes: Mapping[int, Sequence[tuple[int, int]]]) -> dict[int, Tensor]:
        """Runs the next level of every named lane's tree, in one forward.

        Args:
            nodes: lane -> token and parent of each node; the parent is the number of a node of the level before (0, the
                root, for the first level). Only lanes of the last `read` may be named.

        Returns:
            per lane the head's hidden states ``[n, h]`` at its nodes.
        """
        above = self._last
        assert above is not None, "a tree grows below rows that were read"
        levels = [nodes.get(lane, ()) for lane in above.lanes]
        counts = [len(level) for level in levels]
        width = max(counts)
        padded = [[*level, *([(0, 0)] * (width - len(level)))] for level in levels]
        tokens = [[token for token, _ in level] for level in padded]
        parents = torch.tensor([[parent for _, parent in level] for level in padded], device=self._device)  # [B, W]
        if above.layout is None:
            self.cache.begin(above.slots)
            layout = LevelLayout.first(counts, device=self._device)
        else:
            layout = above.layout.next(counts, parents)
        continued = above.hidden.gather(1, parents[:, :, None].expand(-1, -1, above.hidden.shape[2]))  # [B, W, h]
        hidden = self._run(above.lanes, tokens, continued, layout)
        self._last = _Level(above.lanes, above.slots, hidden, layout)
        return {lane: hidden[row, : counts[row]] for row, lane in enumerate(above.lanes) if lane in nodes}

    def _run(
        self,
        lanes: Sequence[int],
        tokens: Sequence[Sequence[int]],
        hidden: Tensor,  # [B, N, h]
        layout: TreeLayout,
    ) -> Tensor:
        def attend(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache.layers[index].update(key, value)
            committed = self.cache.committed_rows(index)
            return self._backend(query, keys, values, layout, committed, scale=self._scale)

        starts = torch.tensor([[self.cache.length(lane)] for lane in lanes], device=self._device)  # [B, 1]
        embeddings = self.head.embed(torch.tensor(tokens, device=self._device))  # [B, N, h]
        return self.head(embeddings.to(self._dtype), hidden, starts + layout.depth, attend)


def _chain(length: int) -> TokenTree:
    return TokenTree.from_chain(0, [0] * (length - 1))
