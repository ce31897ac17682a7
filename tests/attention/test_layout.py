"""Layouts: padding, depths and the masks that backends share, against matrices written by hand."""

from __future__ import annotations

import pytest
import torch

from branchwise.attention import TreeLayout
from branchwise.tree import TokenGraph, TokenTree

pytestmark = pytest.mark.core

#     0
#    / \      in a row of width 5 node 4 is padding
#   1   2
#   |
#   3
TREE = TokenTree((5, 8, 9, 8), (-1, 0, 0, 1))


def rows(mask: torch.Tensor) -> list[str]:
    """A [N, S + N] mask as text, ``1`` = visible, ``.`` = hidden."""
    return ["".join("1" if seen else "." for seen in line) for line in mask.tolist()]


def test_mask_of_ignored_slots_and_padding() -> None:
    layout = TreeLayout.from_trees(TREE, width=5)
    assert rows(layout.mask((3,), 5)[0]) == [
        "111.. 1....".replace(" ", ""),
        "111.. 11...".replace(" ", ""),
        "111.. 1.1..".replace(" ", ""),
        "111.. 11.1.".replace(" ", ""),
        "..... .....".replace(" ", ""),
    ]


def test_window_counts_positions_not_columns() -> None:
    # positions: slots 0 1 2, nodes 3 4 4 5. Node 2 sits in column 7 but at position 4.
    layout = TreeLayout.from_trees(TREE, width=5)
    assert rows(layout.mask((3,), 5, 3)[0]) == [
        ".11.. 1....".replace(" ", ""),
        "..1.. 11...".replace(" ", ""),
        "..1.. 1.1..".replace(" ", ""),
        "..... 11.1.".replace(" ", ""),
        "..... .....".replace(" ", ""),
    ]
    assert rows(layout.mask((3,), 5, 2)[0])[3] == "..... .1.1.".replace(" ", "")


def test_ragged_rows() -> None:
    layout = TreeLayout.from_trees([TREE, TokenTree((1,), (-1,)), TokenGraph((1, 2, 3), [(0, 1), (0, 2)])])
    assert (layout.batch, layout.width, layout.nodes, layout.height) == (3, 4, (4, 1, 3), 2)
    assert layout.depth.tolist() == [[0, 1, 1, 2], [0, 0, 0, 0], [0, 1, 1, 0]]
    assert rows(layout.ancestors[1]) == ["1...", "....", "....", "...."]
    assert rows(layout.ancestors[2]) == ["1...", "11..", "1.1.", "...."]
    assert layout.padding is not None
    assert rows(layout.padding) == ["....", ".111", "...1"]
    assert not layout.is_causal


def test_one_tree_for_all_rows() -> None:
    layout = TreeLayout.from_trees(TREE, batch=3)
    assert layout.nodes == (4, 4, 4)
    assert layout.depth.shape == (3, 4)
    assert layout.mask((0, 1, 2), 2).shape == (3, 4, 6)
    assert layout.padding is None


@pytest.mark.parametrize(
    ("tree", "width", "causal"),
    [
        (TokenTree.from_chain(1, (2, 3)), 3, True),
        (TokenTree.from_chain(1, (2, 3)), 4, False),  # a padded chain is not N nodes long
        (TokenTree((1,), (-1,)), 1, True),
        (TREE, 4, False),
        (TokenGraph((1, 2, 3), [(0, 1), (1, 2)]), 3, True),
    ],
)
def test_is_causal_means_a_full_chain(tree: TokenTree | TokenGraph, width: int, causal: bool) -> None:
    assert TreeLayout.from_trees(tree, width=width).is_causal is causal


def test_chain_builds_no_matrix_until_asked() -> None:
    layout = TreeLayout.chain(4096)
    assert layout._ancestors is None and "ancestors" not in layout.__dict__
    assert torch.equal(TreeLayout.chain(5).ancestors, torch.ones(1, 5, 5, dtype=torch.bool).tril())
    with pytest.raises(ValueError, match="length 0"):
        TreeLayout.chain(0)


def test_slot_mask_is_needed_only_when_a_slot_is_hidden() -> None:
    layout = TreeLayout.from_trees(TREE)  # deepest node at committed + 2
    assert not layout.needs_slot_mask((6,), 6)
    assert layout.needs_slot_mask((5,), 6)
    assert not layout.needs_slot_mask((0,), 0, window=1)
    assert not layout.needs_slot_mask((6,), 6, window=9)  # the farthest pair is 8 apart
    assert layout.needs_slot_mask((6,), 6, window=8)
    for window in range(1, 12):
        hidden = not layout.mask((6,), 6, window)[:, :, :6].all()
        assert layout.needs_slot_mask((6,), 6, window) == hidden


def test_additive_mask_is_the_mask_and_is_shared() -> None:
    layout = TreeLayout.from_trees([TREE, TREE])
    for committed, window in (((3, 6), None), ((6, 6), None), ((6, 6), 4), ((6, 6), 2)):
        bias = layout.additive_mask(committed, 6, window, torch.float32, repeats=3)
        assert bias is not None
        wanted = layout.mask(committed, 6, window).repeat(1, 3, 1)[:, None]
        assert torch.equal(bias == 0, wanted) and torch.equal(bias == -torch.inf, ~wanted)
        assert layout.additive_mask(committed, 6, window, torch.float32, repeats=3) is bias
    assert TreeLayout.chain(1).additive_mask((6,), 6, None, torch.float32) is None


def test_cached_masks_do_not_pile_up() -> None:
    layout = TreeLayout.from_trees(TREE)
    for committed in range(50):
        layout.mask((committed,), 50)
    assert len(layout._masks) <= 8


def test_errors_name_the_row_and_the_sizes() -> None:
    with pytest.raises(ValueError, match="got 2 trees for 3 batch rows"):
        TreeLayout.from_trees([TREE, TREE], batch=3)
    with pytest.raises(ValueError, match=r"tree\[1\] has 4 nodes, but there is room for 2"):
        TreeLayout.from_trees([TokenTree((1,), (-1,)), TREE], width=2)
    with pytest.raises(ValueError, match="the tree has 4 nodes"):
        TreeLayout.from_trees(TREE, width=3)
    with pytest.raises(ValueError, match="empty sequence"):
        TreeLayout.from_trees([])
    with pytest.raises(TypeError, match=r"tree\[1\] must be a TokenTree or a TokenGraph, got list"):
        TreeLayout.from_trees([TREE, [-1, 0]])
