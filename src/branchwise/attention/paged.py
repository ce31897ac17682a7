"""Tree attention on a paged cache: keys and values in pages of equal size, a table says whose page is where.

Knows pages and how to refuse a wrong table. On a GPU the triton kernel follows the table; elsewhere the pages are
gathered into rows first, which copies them once per call, and any backend does the rest.

One sequence with 5 committed tokens and a tree of 2 nodes, in pages of 4 rows, ``table = (7, 2)``:

    page 7   row 0   row 1   row 2   row 3      positions 0 .. 3
    page 2   row 4   node 0  node 1   -         position 4, then the tree
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .layout import Tree, TreeLayout
from .tree_attention import tree_attention, validated_committed, validated_layout, validated_score_options
from .triton_backend import Pages, has_triton, triton_attention


def paged_tree_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    tree: Tree | Sequence[Tree] | TreeLayout,
    *,
    committed: Tensor | Sequence[int],
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """`tree_attention` on pages. Row ``committed[b] + i`` of sequence b holds node i of its tree.

    Args:
        query: ``[B, H, N, D]``.
        key_pages: ``[pages, K, rows, D]``; any strides, so pages stored rows first are given transposed.
        value_pages: ``[pages, K, rows, Dv]``.
        page_table: int32 or int64 ``[B, P]``; row b names the pages of sequence b in order. Entries behind the last row
            in use are never looked at.
        tree: as in `tree_attention`.
        committed: committed tokens of every sequence, int ``[B]``.
        scale: as in `tree_attention`.
        window: as in `tree_attention`.
        softcap: as in `tree_attention`.
        sinks: as in `tree_attention`.
        backend: "triton", or any other name to gather the pages first; "auto" is triton on a GPU where it is installed.

    Returns:
        ``[B, H, N, Dv]`` in the dtype of the query.

    Raises:
        ValueError: shapes that do not fit together, a sequence that needs more pages than its row of the table has, or,
            where the table is on the CPU, a page that does not exist.
        TypeError: an argument of the wrong kind.
    """
    _check_pages(query, key_pages, value_pages, page_table)
    validated_score_options(window, softcap, sinks, query)
    batch, _, width, dim = query.shape
    page_rows = key_pages.shape[2]
    counts = validated_committed(committed, batch, page_table.shape[1] * page_rows)
    layout = validated_layout(tree, batch, width, query.device)
    _check_room(counts, layout, page_table, *key_pages.shape[0:3:2])
    if backend == "triton" or (backend == "auto" and query.is_cuda and has_triton()):
        return triton_attention(
            query,
            key_pages,
            value_pages,
            layout,
            counts,
            scale=dim**-0.5 if scale is None else scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
            pages=Pages(page_table.contiguous(), page_rows),
        )
    key, value = (_gathered(pages, page_table, counts, layout) for pages in (key_pages, value_pages))
    return tree_attention(
        query,
        key,
        value,
        layout,
        committed=counts,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        backend=backend,
    )


def _check_pages(query: Tensor, key_pages: Tensor, value_pages: Tensor, page_table: Tensor) -> None:
    tensors = {"query": query, "key_pages": key_pages, "value_pages": value_pages, "page_table": page_table}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device} but query is on {query.device}: move them to one device")
        if name == "page_table":
            continue
        if tensor.dim() != 4:
            raise ValueError(f"{name} must have 4 axes, got shape {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}: convert it first")
        if tensor.dtype != query.dtype:
            raise ValueError(f"{name} is {tensor.dtype} but query is {query.dtype}: convert them to one dtype")
        if tensor.numel() == 0:
            raise ValueError(f"{name} must not be empty, got shape {tuple(tensor.shape)}")
    if key_pages.shape[3] != query.shape[3]:
        raise ValueError(f"key_pages has width {key_pages.shape[3]} but query has width {query.shape[3]}")
    if query.shape[1] % key_pages.shape[1]:
        raise ValueError(
            f"query has {query.shape[1]} heads, which is not a multiple of the {key_pages.shape[1]} heads of key_pages"
        )
    if value_pages.shape[:3] != key_pages.shape[:3]:
        raise ValueError(
            "value_pages must have as many pages, heads and rows as key_pages, got "
            f"{tuple(value_pages.shape[:3])} and {tuple(key_pages.shape[:3])}"
        )
    if page_table.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"page_table must be int32 or int64, got {page_table.dtype}")
    if page_table.dim() != 2 or page_table.shape[0] != query.shape[0]:
        raise ValueError(f"page_table must be [{query.shape[0]}, pages], got shape {tuple(page_table.shape)}")


def _check_room(counts: tuple[int, ...], layout: TreeLayout, page_table: Tensor, pages: int, page_rows: int) -> None:
    for row, (count, nodes) in enumerate(zip(counts, layout.nodes, strict=True)):
        needed = -(-(count + nodes) // page_rows)
        if needed > page_table.shape[1]:
            raise ValueError(
                f"row {row} has {count} committed tokens and {nodes} nodes, {needed} pages of {page_rows} rows, but "
                f"its row of page_table names {page_table.shape[1]}"
            )
        if page_table.device.type == "cpu":  # on a GPU the look would cost more than the attention
            for page in page_table[row, :needed].tolist():
                if not 0 <= page < pages:
                    raise ValueError(f"row {row} of page_table names page {page}, there are {pages} pages")


def _gathered(pages: Tensor, page_table: Tensor, counts: tuple[int, ...], layout: TreeLayout) -> Tensor:
    """The rows in use as one tensor ``[B, K, S + N, D]``, S being the longest of the committed lengths."""
    slots, device = max(counts), pages.device
    rows = torch.arange(slots + layout.width, device=device).repeat(len(counts), 1)  # [B, S + N]
    lengths = layout.counts(counts)[:, None].long()
    in_use = torch.where(
        rows < slots, rows < lengths, rows - slots < torch.tensor(layout.nodes, device=device)[:, None]
    )
    rows = torch.where(rows < slots, rows, rows - slots + lengths)
    # rows that nobody sees take the place of row 0, which is finite
    rows = torch.where(in_use, rows, 0)
    page = page_table.long().gather(1, rows // pages.shape[2])  # [B, S + N]
    return pages[page, :, rows % pages.shape[2]].transpose(1, 2)  # [B, S + N, K, D] -> [B, K, S + N, D]
