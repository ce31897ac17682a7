"""What one forward brings to a compiled decoder: blocks, and who sees whom, as named tensors.

Knows trees and a `PagedCache`; knows no weight and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..attention.layout import TreeLayout
from ..cache import PagedCache
from ..cache.paged_cache import BLOCK_ROWS
from ..tree import TokenTree
from .grown_tree import GrownTree
from .openvino_attention import seen_names

#: hides a row: far below any score, and finite, so that rows of padding stay finite, too
_HIDDEN = -1e30


def paged_inputs(cache: PagedCache, trees: Mapping[int, TokenTree]) -> dict[str, Tensor]:
    """What paged attention asks for; the cache has made room for the trees already."""
    past = [cache.length(lane) for lane in trees]
    nodes = [len(tree) for tree in trees.values()]
    blocks = [cache.blocks(lane) for lane in trees]
    # a chain is what the engine assumes where there is no matrix
    seen = [torch.empty(0, dtype=torch.uint8) if _is_chain(tree) else _seen_matrix(tree) for tree in trees.values()]
    whole = {
        "past_lens": past,
        "subsequence_begins": _begins(nodes),
        "block_indices": [block for row in blocks for block in row],
        "block_indices_begins": _begins([len(row) for row in blocks]),
        "max_context_len": max(p + n for p, n in zip(past, nodes, strict=True)),
        "qq_bias_begins": _begins([len(matrix) for matrix in seen]),
    }
    return {name: torch.tensor(value, dtype=torch.int32) for name, value in whole.items()} | {
        "qq_bias": torch.cat(seen)
    }


def gathered_inputs(
    cache: PagedCache, trees: Mapping[int, GrownTree], windows: Sequence[int | None]
) -> dict[str, Tensor]:
    """What gathered attention asks for, for layers of these windows."""
    layout = _layout_of_new(list(trees.values()))
    width = layout.width
    first = torch.tensor(_begins(layout.nodes)[:-1])[:, None]  # [B, 1]
    node = torch.arange(width)
    # padding takes the first node of its lane
    spread = first + torch.where(node < torch.tensor(layout.nodes)[:, None], node, 0)  # [B, N]
    place = [lane * width + node for lane, nodes in enumerate(layout.nodes) for node in range(nodes)]
    given = {"spread": spread.to(torch.int32), "place": torch.tensor(place, dtype=torch.int32)}
    for window in windows:
        blocks, mask = _seen_blocks(cache, trees, layout, window)
        given |= dict(zip(seen_names(window), (blocks, mask), strict=True))
    return given


def _layout_of_new(trees: Sequence[GrownTree]) -> TreeLayout:
    """Of the nodes to run now, among themselves."""
    if not any(grown.known for grown in trees):
        return TreeLayout.from_trees([grown.tree for grown in trees])
    nodes = tuple(map(len, trees))
    depth = torch.zeros(len(trees), max(nodes), dtype=torch.int64)
    seen = torch.zeros(len(trees), max(nodes), max(nodes), dtype=torch.bool)
    for row, grown in enumerate(trees):
        depth[row, : len(grown)] = torch.tensor(grown.depth)
        seen[row, : len(grown), : len(grown)] = grown.tree.ancestors()[grown.known :, grown.known :]
    return TreeLayout(nodes, depth, is_causal=False, ancestors=seen)


def _seen_blocks(
    cache: PagedCache, trees: Mapping[int, GrownTree], layout: TreeLayout, window: int | None
) -> tuple[Tensor, Tensor]:
    """Blocks of the rows before the forward that some node may see, and the mask, which also has the new rows.

    Rows before the forward are committed ones and those of a tree's earlier nodes, which only descendants see.

    Returns:
        ``[B, M]`` and ``[B, 1, N, 32 M + N]``.
    """
    tables: list[list[int]] = []
    committed: list[int] = []
    for lane, grown in trees.items():
        length = cache.length(lane)
        first = 0 if window is None else max(0, length - (window - 1)) // BLOCK_ROWS
        last = -(-(length + grown.known) // BLOCK_ROWS)
        tables.append(cache.blocks(lane)[first:last])
        committed.append(length - first * BLOCK_ROWS)
    most = max(1, *map(len, tables))
    # what fills a short row is a block of its lane; the mask hides it
    filled = [
        [*table, *([cache.blocks(lane)[0]] * (most - len(table)))] for lane, table in zip(trees, tables, strict=True)
    ]
    blocks = torch.tensor(filled, dtype=torch.int32)
    visible = layout.mask(tuple(committed), most * BLOCK_ROWS, window)  # [B, N, 32 M + N]
    if any(grown.known for grown in trees.values()):
        visible = visible.clone()  # the layout keeps its masks
        for row, (grown, rows) in enumerate(zip(trees.values(), committed, strict=True)):
            visible[row, : len(grown), rows : rows + grown.known] = _seen_earlier(grown, window)
    return blocks, torch.zeros(visible.shape).masked_fill_(~visible, _HIDDEN)[:, None]


def _seen_earlier(grown: GrownTree, window: int | None) -> Tensor:
    """Which of its earlier nodes every new node sees: bool ``[n, known]``."""
    seen = grown.tree.ancestors()[grown.known :, : grown.known]
    if window is None:
        return seen
    depth = torch.tensor(grown.tree.depth)
    return seen & (depth[grown.known :, None] - depth[: grown.known] < window)


def _seen_matrix(tree: TokenTree) -> Tensor:
    return tree.ancestors().to(torch.uint8).flatten()


def _is_chain(tree: TokenTree) -> bool:
    return tree.height == len(tree) - 1


def _begins(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)]
