"""Running a head in torch for several lanes at once: its keys and values, and where every lane is.

Knows rows, levels and which hidden state a node continues. Does not know which tokens are drafted, nor why.

The rows of a lane in the head's cache are its committed tokens but the first: row t holds the target's features at
position t and the token at t + 1. A draft begins with the rows that are new since the last one, which stay; the rows of
drafted nodes come from the head's own output and are all given up again:

    cache  | committed | new committed ... root | level 1 | level 2 | ...
           |<------------ kept ---------------->|<--- rolled back ------>
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..attention.layout import TreeLayout
from ..attention.level_layout import LevelLayout
from ..attention.registry import get_backend
from ..cache import TreeCache
from ..tree import TokenTree
from .eagle_head import EagleHead
from .top_tokens import likeliest_tokens

#: candidates of one node: token and log-probability given the node
Candidates = list[tuple[int, float]]
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

    engine = "torch"

    def __init__(self, head: EagleHead, attention: str = "auto") -> None:
        self.head = head
        self.cache = TreeCache([None] * head.config.layers)
        self._backend = get_backend(attention)
        self._scale = head.config.head_dim**-0.5
        weight = head.fc.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._target_ids = None if head.target_ids is None else head.target_ids.tolist()
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

    def read(self, rows: Mapping[int, CommittedRows], wanted: int = 0) -> dict[int, list[Candidates]]:
        """Adds committed rows, in one forward for all lanes.

        Args:
            rows: of every lane that has new ones.
            wanted: candidates after the last new row of each lane, at most as many as the draft vocabulary has tokens;
                0 for a prompt that goes on.

        Returns:
            per lane one row of candidates, the likeliest first; nothing if none are wanted.
        """
        slots = [self.cache.slot(lane) for lane in rows]
        span = range(min(slots), max(slots) + 1)
        lanes = self.cache.lanes[span.start : span.stop]
        batch = [rows[lane] if lane in rows else self._no_rows() for lane in lanes]
        counts = [len(row.tokens) for row in batch]
        width = max(counts)
        if len(batch) == 1:
            layout = TreeLayout.chain(width, device=self._device)
            features = batch[0].features[None]  # [1, N, F * h_t]
        else:
            layout = TreeLayout.from_trees([_chain(count) for count in counts], device=self._device)
            features = pad_sequence([row.features for row in batch], batch_first=True)  # [B, N, F * h_t]
        tokens = [[*row.tokens, *([0] * (width - len(row.tokens)))] for row in batch]
        starts = map(self.cache.length, lanes)
        positions = [list(range(start, start + width)) for start in starts]  # those of padding do not matter
        numbers = self._numbers(tokens, positions)  # [2, B, N]
        self.cache.begin(span)
        hidden = self._run(numbers[0], numbers[1], self.head.fuse(features), layout)  # [B, N, h]
        self.cache.commit({lane: range(len(given.tokens)) for lane, given in rows.items()})
        if min(counts) == width:
            last = hidden[:, -1:]  # [B, 1, h]
        else:
            last = torch.stack([hidden[row, count - 1 : count] for row, count in enumerate(counts)])  # [B, 1, h]
        self._last = _Level(lanes, span, last, None)
        return self._candidates({lane: last[row] for row, lane in enumerate(lanes) if lane in rows}, wanted, 0)

    def extend(self, nodes: Mapping[int, Sequence[tuple[int, int]]], wanted: int) -> dict[int, list[Candidates]]:
        """Runs the next level of every named lane's tree, in one forward.

        Args:
            nodes: lane -> token and parent of each node; the parent is the number of a node of the level before (0, the
                root, for the first level). Only lanes of the last `read` may be named.
            wanted: as for `read`.

        Returns:
            per lane the candidates after each of its nodes.
        """
        above = self._last
        assert above is not None, "a tree grows below rows that were read"
        levels = [nodes.get(lane, ()) for lane in above.lanes]
        counts = [len(level) for level in levels]
        width = max(counts)
        padded = [[*level, *([(0, 0)] * (width - len(level)))] for level in levels]
        depth = 0 if above.layout is None else above.layout.height + 1
        tokens = [[token for token, _ in level] for level in padded]
        parents = [[parent for _, parent in level] for level in padded]
        rows = [[row * above.hidden.shape[1] + parent for parent in level] for row, level in enumerate(parents)]
        positions = [[self.cache.length(lane) + depth] * width for lane in above.lanes]
        numbers = self._numbers(tokens, rows, positions)  # [3, B, W]
        if above.layout is None:
            self.cache.begin(above.slots)
            layout = LevelLayout.first(counts, device=self._device)
        else:
            layout = above.layout.next(counts, parents)
        continued = torch.embedding(above.hidden.flatten(0, 1), numbers[1])  # [B, W, h]
        hidden = self._run(numbers[0], numbers[2], continued, layout)
        self._last = _Level(above.lanes, above.slots, hidden, layout)
        whole = min(counts) == width
        states = {
            lane: hidden[row] if whole else hidden[row, : counts[row]]
            for row, lane in enumerate(above.lanes)
            if lane in nodes
        }
        return self._candidates(states, wanted, depth + 1)

    def _candidates(self, hidden: Mapping[int, Tensor], wanted: int, level: int) -> dict[int, list[Candidates]]:
        """What may follow the rows ``[n, h]`` of each lane: one selection for all lanes."""
        if not wanted:
            return {}
        states = list(hidden.values())
        logits = self.head.logits(torch.cat(states) if len(states) > 1 else states[0], level)  # [all rows, choices]
        likeliest = iter(likeliest_tokens(logits, wanted, self._target_ids))
        return {lane: list(islice(likeliest, len(rows))) for lane, rows in hidden.items()}

    def _numbers(self, *tables: Sequence[Sequence[int]]) -> Tensor:
        """Tables of one shape as int64 ``[tables, ...]`` on the device, in one transfer."""
        flat = array("q", chain.from_iterable(chain.from_iterable(tables)))  # nested lists are slow to read for torch
        return torch.frombuffer(flat, dtype=torch.int64).view(len(tables), len(tables[0]), -1).to(self._device)

    def _no_rows(self) -> CommittedRows:
        """For a lane between others that has nothing to read: one row, which is dropped."""
        return CommittedRows((0,), torch.zeros(1, self.head.feature_width, dtype=self._dtype, device=self._device))

    def _run(self, tokens: Tensor, positions: Tensor, hidden: Tensor, layout: TreeLayout) -> Tensor:
        """One forward of the head: tokens and positions ``[B, N]``, hidden states ``[B, N, h]`` to the same."""

        def attend(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache.layers[index].update(key, value)
            committed = self.cache.committed_rows(index)
            return self._backend(query, keys, values, layout, committed, scale=self._scale)

        return self.head(self.head.embed(tokens).to(self._dtype), hidden, positions, attend)


def _chain(length: int) -> TokenTree:
    return TokenTree.from_chain(0, [0] * (length - 1))
