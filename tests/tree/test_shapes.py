"""Shapes without tokens: chains, k-ary trees and Medusa's index paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.tree import TokenTree, chain_shape, index_path_shape, kary_shape

pytestmark = pytest.mark.core


def test_chain_shape() -> None:
    assert chain_shape(0) == (-1,)
    assert chain_shape(3) == (-1, 0, 1, 2)
    with pytest.raises(ValueError, match="got -1"):
        chain_shape(-1)


def test_kary_shape() -> None:
    #         0
    #       /   \
    #      1     2
    #     /|\   /|\
    #    3 4 5 6 7 8
    assert kary_shape((2, 3)) == (-1, 0, 0, 1, 1, 1, 2, 2, 2)
    assert kary_shape(()) == (-1,)
    assert kary_shape((1, 1)) == chain_shape(2)
    with pytest.raises(ValueError, match=r"branching\[1\] must be >= 1, got 0"):
        kary_shape((2, 0))


@given(st.lists(st.integers(1, 4), max_size=4))
def test_kary_shape_has_the_stated_children_at_every_depth(branching: list[int]) -> None:
    shape = kary_shape(branching)
    tree = TokenTree([0] * len(shape), shape)
    assert tree.height == len(branching)
    for node in range(len(tree)):
        depth = tree.depth[node]
        assert len(tree.children(node)) == (branching[depth] if depth < len(branching) else 0)


def test_index_paths_in_any_order() -> None:
    #          0
    #        /   \                paths (0,) (2,) (0, 0) (0, 1) (2, 4)
    #   1 (0)     2 (2)
    #    /  \        \            sorted by depth, then by path
    # 3(0,0) 4(0,1) 5(2,4)
    parents, ranks = index_path_shape([(0, 1), (2, 4), (0,), (0, 0), (2,)])
    assert parents == (-1, 0, 0, 1, 1, 2)
    assert ranks == (0, 0, 2, 0, 1, 4)
    assert index_path_shape([]) == ((-1,), (0,))


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), max_size=10))
def test_ranks_along_a_path_spell_the_index_path(drawn: list[tuple[int, ...]]) -> None:
    closed = {path[:end] for path in drawn for end in range(1, len(path) + 1)}
    parents, ranks = index_path_shape(sorted(closed, reverse=True))
    tree = TokenTree([0] * len(parents), parents)
    spelled = [tuple(ranks[step] for step in tree.path(node)[1:]) for node in range(1, len(tree))]
    assert set(spelled) == closed and len(spelled) == len(closed)
    assert list(tree.depth) == sorted(tree.depth)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([(0,), ()], "must not be empty"),
        ([(0,), (0, -1)], r"\(0, -1\) has a negative index"),
        ([(0,), (0,)], r"\(0,\) appears twice"),
        ([(0,), (1, 2)], r"\(1, 2\) has no parent: \(1,\) is missing"),
    ],
)
def test_refused(paths: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        index_path_shape(paths)
