"""What attention needs to know about a batch of trees: how many nodes, how deep, and who is whose ancestor.

This file turns token trees into index tensors and visibility masks. It knows no queries, keys or values, no backend and
no token: token ids are dropped here.

Letters: B rows of the batch, N nodes (the width: rows with fewer are padded), S slots before the tree, G = H / K query
heads per key/value head.

The columns of a mask are the rows of a key buffer, in buffer order. For one batch row with ``committed = 3``, ``S = 5``
and the tree ``parents = (-1, 0, 0, 1)`` in a batch of width 5 (node 4 is padding):

    column      0 1 2 | 3 4     | 5 6 7 8 9
    holds       committed | ignored | nodes 0..4
    position    0 1 2 | - -     | 3 4 4 5 -

    node 0      1 1 1   . .       1 . . . .
    node 1      1 1 1   . .       1 1 . . .
    node 2      1 1 1   . .       1 . 1 . .
    node 3      1 1 1   . .       1 1 . 1 .         with window 3:  . . 1   . .   1 1 . 1 .
    padding     . . .   . .       . . . . .

Distances are taken between positions, never between columns: the two differ as soon as a tree branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..tree import TokenGraph, TokenTree
from .packed import PackedTrees, pack_visible

Tree: TypeAlias = TokenTree | TokenGraph
Built = TypeVar("Built")

_CACHED_MASKS = 8
"""Masks and counts kept per layout. A forward needs few, two or three per window in use; a layout may live for many."""


class TreeLayout:
    """A batch of trees, possibly of different sizes, as attention sees them. Immutable by convention.

    Build one with `from_trees` or `chain` and use it for every layer of a forward: masks are cached.

    Attributes:
        nodes: number of real nodes of every row; row b uses nodes ``[0, nodes[b])``.
        depth: int64 ``[B, N]``, distance to the root; 0 in padding.
        is_causal: every row is one chain of N nodes, so `ancestors` is lower-triangular everywhere.
        height: depth of the deepest node of all rows.
    """

    nodes: tuple[int, ...]
    depth: Tensor
    is_causal: bool
    height: int

    def __init__(
        self,
        nodes: tuple[int, ...],
        depth: Tensor,
        *,
        is_causal: bool,
        ancestors: Tensor | None,
        height: int | None = None,
    ) -> None:
        self.nodes = nodes
        self.depth = depth
        self.is_causal = is_causal
        if height is None:
            height = depth.shape[1] - 1 if is_causal else int(depth.max())
        self.height = height
        self._ancestors = ancestors
        self._masks: dict[tuple[object, ...], Any] = {}

    @classmethod
    def from_trees(
        cls,
        trees: Tree | Sequence[Tree],
        *,
        batch: int | None = None,
        width: int | None = None,
        device: torch.device | str | None = None,
    ) -> TreeLayout:
        """Lays out one tree for all rows, or one tree per row.

        Args:
            trees: a tree or graph shared by all rows, or a sequence with one per row.
            batch: number of rows B; by default 1 for a single tree and the length of a sequence.
            width: node axis N; by default the size of the largest tree. Smaller trees are padded.
            device: where the tensors go.

        Raises:
            ValueError: the sequence is empty or not of length ``batch``, or a tree has more than ``width`` nodes.
            TypeError: something is neither a `TokenTree` nor a `TokenGraph`.
        """
        shared = isinstance(trees, TokenTree | TokenGraph)
        per_row: tuple[Tree, ...] = (trees,) if isinstance(trees, TokenTree | TokenGraph) else tuple(trees)
        for row, tree in enumerate(per_row):
            if not isinstance(tree, TokenTree | TokenGraph):
                raise TypeError(f"tree[{row}] must be a TokenTree or a TokenGraph, got {type(tree).__name__}")
        if not per_row:
            raise ValueError("got an empty sequence of trees: give one tree per batch row, or a single tree for all")
        if batch is None:
            batch = len(per_row)
        if not shared and len(per_row) != batch:
            raise ValueError(
                f"got {len(per_row)} trees for {batch} batch rows: give one tree per row, or a single tree for all"
            )
        largest = max(range(len(per_row)), key=lambda row: len(per_row[row]))
        if width is None:
            width = len(per_row[largest])
        if len(per_row[largest]) > width:
            which = "the tree" if shared else f"tree[{largest}]"
            raise ValueError(
                f"{which} has {len(per_row[largest])} nodes, but there is room for {width}: prune the tree"
            )

        depth = torch.zeros(len(per_row), width, dtype=torch.int64)
        ancestors = torch.zeros(len(per_row), width, width, dtype=torch.bool)
        for row, tree in enumerate(per_row):
            depth[row, : len(tree)] = torch.tensor(tree.depth)
            ancestors[row, : len(tree), : len(tree)] = tree.ancestors()
        # depth i at every node i leaves node i - 1 as the only possible parent of node i
        is_causal = all(tree.depth == tuple(range(width)) for tree in per_row)
        nodes = tuple(map(len, per_row))
        if shared:
            nodes = nodes * batch
            depth = depth.expand(batch, -1)  # [1, N] -> [B, N]
            ancestors = ancestors.expand(batch, -1, -1)  # [1, N, N] -> [B, N, N]
        return cls(nodes, depth.to(device), is_causal=is_causal, ancestors=ancestors.to(device))

    @classmethod
    def chain(cls, length: int, *, device: torch.device | str | None = None) -> TreeLayout:
        """One row of ``length`` nodes without branches: a prompt. The ancestors are built only if asked for."""
        if length < 1:
            raise ValueError(f"a chain needs at least one node, got length {length}")
        depth = torch.arange(length, device=device)[None]  # [1, N]
        return cls((length,), depth, is_causal=True, ancestors=None)

    @property
    def batch(self) -> int:
        """Number of rows B."""
        return len(self.nodes)

    @property
    def width(self) -> int:
        """Length N of the node axis, padding included."""
        return self.depth.shape[1]

    @cached_property
    def ancestors(self) -> Tensor:
        """Bool ``[B, N, N]``: row i marks the ancestors of node i and itself; False in padding rows and columns."""
        if self._ancestors is not None:
            return self._ancestors
        block = torch.ones(self.width, self.width, dtype=torch.bool, device=self.depth.device).tril()  # [N, N]
        return block.expand(self.batch, -1, -1)  # [B, N, N]

    @cached_property
    def padding(self) -> Tensor | None:
        """Bool ``[B, N]``, True at nodes that do not exist; None when every row has N nodes."""
        if min(self.nodes) == self.width:
            return None
        counts = torch.tensor(self.nodes, device=self.depth.device)
        return torch.arange(self.width, device=self.depth.device) >= counts[:, None]  # [B, N]

    def columns(self) -> tuple[Tensor, Tensor]:
        """What is seen of the columns behind the committed slots, bool ``[B, N, T]``, and their depths ``[B, T]``.

        Here T = N: the nodes themselves.
        """
        return self.ancestors, self.depth

    @cached_property
    def packed(self) -> PackedTrees:
        """The trees as words of bits, for kernels."""
        nodes = torch.tensor(self.nodes, dtype=torch.int32, device=self.depth.device)
        depth = self.depth.int().contiguous()
        if self.is_causal:  # a prompt may be long, its matrix is never built
            return PackedTrees(None, nodes, depth, depth)
        visible, column_depth = self.columns()
        return PackedTrees(pack_visible(visible), nodes, depth, column_depth.int().contiguous())

    def counts(self, committed: tuple[int, ...]) -> Tensor:
        """``committed`` as int32 ``[B]`` on the device of the layout. Cached, so that layers share one transfer."""
        return self.cached(
            ("counts", committed), lambda: torch.tensor(committed, dtype=torch.int32, device=self.depth.device)
        )

    def needs_slot_mask(self, committed: tuple[int, ...], slots: int, window: int | None = None) -> bool:
        """Whether some real node must not see some slot; False means that only the tree block needs masking.

        False is the common case: one lane whose slots are all committed, and a window that reaches back to slot 0.
        """
        if slots == 0:
            return False
        if any(count != slots for count in committed):
            return True
        return window is not None and slots + self.height >= window

    def tree_block(self, window: int | None = None) -> Tensor:
        """What nodes see of each other: bool ``[B, N, N]``, ancestors no further away than the window allows."""
        if window is None or self.height < window:
            return self.ancestors
        distance = self.depth[:, :, None] - self.depth[:, None, :]  # [B, N, N]
        return self.ancestors & (distance < window)

    def slot_block(self, committed: tuple[int, ...], slots: int, window: int | None = None) -> Tensor:
        """What nodes see of the slots: bool ``[B, N, S]``; padding sees nothing."""
        device = self.depth.device
        counts = torch.tensor(committed, device=device)[:, None, None]  # [B, 1, 1]
        position = torch.arange(slots, device=device)  # [S]: slot j < committed holds position j
        visible = (position < counts).expand(self.batch, self.width, slots)  # [B, N, S]
        if window is not None:
            visible = visible & (counts + self.depth[:, :, None] - position < window)
        if self.padding is not None:
            visible = visible & ~self.padding[:, :, None]
        return visible

    def mask(self, committed: tuple[int, ...], slots: int, window: int | None = None) -> Tensor:
        """Visibility of every key row: bool ``[B, N, S + N]``, True = visible. Cached.

        Args:
            committed: per row, how many of the slots hold committed tokens; the others are ignored.
            slots: number S of key rows before the tree.
            window: a node sees a key only if ``pos_q - pos_k < window``; None for no limit.
        """

        def build() -> Tensor:
            return torch.cat((self.slot_block(committed, slots, window), self.tree_block(window)), dim=2)

        return self.cached(("mask", committed, slots, window), build)

    def additive_mask(
        self, committed: tuple[int, ...], slots: int, window: int | None, dtype: torch.dtype, repeats: int = 1
    ) -> Tensor | None:
        """The mask as a bias for scores: 0 = visible, -inf = hidden, of shape ``[B or 1, 1, repeats * N, S + N]``.

        Cached, so that the layers of a forward share it. Rows of padding are unspecified: zero their outputs.

        Args:
            committed: as in `mask`.
            slots: as in `mask`.
            window: as in `mask`.
            dtype: dtype of the bias, that of the query.
            repeats: copies of the node axis, node fastest: G for queries folded as ``[B, K, G * N, D]``.

        Returns:
            The bias, or None when nothing is hidden.
        """

        def build() -> Tensor | None:
            if self.needs_slot_mask(committed, slots, window):
                visible = self.mask(committed, slots, window)  # [B, N, S + N]
                bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
                bias.masked_fill_(~visible, -torch.inf)
            elif self.width == 1:
                return None  # a lone root sees every slot and itself
            else:
                block = self.tree_block(window)  # [B, N, N]
                if self.is_causal or self.batch == 1:
                    block = block[:1]
                bias = torch.zeros(len(block), self.width, slots + self.width, dtype=dtype, device=block.device)
                bias[:, :, slots:].masked_fill_(~block, -torch.inf)
            return bias.repeat(1, repeats, 1)[:, None]  # [B or 1, 1, repeats * N, S + N]

        return self.cached(("additive", committed, slots, window, dtype, repeats), build)

    def zero_padding(self, output: Tensor) -> Tensor:
        """``output [B, H, N, Dv]`` with exact zeros at nodes that do not exist."""
        if self.padding is None:
            return output
        return output.masked_fill(self.padding[:, None, :, None], 0)

    def cached(self, key: tuple[object, ...], build: Callable[[], Built]) -> Built:
        """What ``build`` returns, built once per key; the oldest of more than a few is forgotten."""
        if key not in self._masks:
            built = build()
            while len(self._masks) >= _CACHED_MASKS:
                self._masks.pop(next(iter(self._masks)))
            self._masks[key] = built
        return self._masks[key]

    def __repr__(self) -> str:
        return f"TreeLayout(nodes={self.nodes}, width={self.width}, is_causal={self.is_causal})"
