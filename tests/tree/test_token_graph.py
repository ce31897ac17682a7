"""Token graphs: the closure over several parents, and what makes a graph refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from branchwise.tree import TokenGraph, TokenTree

pytestmark = pytest.mark.core

#     0
#    / \         ancestors  0 1 2 3 4
#   1   2                0  1 . . . .
#    \ / \               1  1 1 . . .
#     3   4              2  1 . 1 . .
#                        3  1 1 1 1 .
#                        4  1 . 1 . 1
DIAMOND = TokenGraph((5, 6, 7, 8, 9), [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4)])


@st.composite
def layered_edges(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Nodes in layers, every node with one or more parents in the layer above, edges in any order."""
    layers = [[0]]
    edges: list[tuple[int, int]] = []
    for width in draw(st.lists(st.integers(1, 9), max_size=9)):
        first = layers[-1][-1] + 1
        layer = list(range(first, first + width))
        for node in layer:
            parents = draw(st.lists(st.sampled_from(layers[-1]), min_size=1, max_size=3, unique=True))
            edges += [(parent, node) for parent in parents]
        layers.append(layer)
    return layers[-1][-1] + 1, draw(st.permutations(edges))


def closure_by_squaring(nodes: int, edges: list[tuple[int, int]]) -> torch.Tensor:
    reach = torch.eye(nodes)
    for parent, child in edges:
        reach[child, parent] = 1
    for _ in range(nodes):
        reach = (reach @ reach).clamp(max=1)
    return reach.bool()


@given(layered_edges())
def test_ancestors_are_the_closure_over_all_parents(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    nodes, edges = drawn
    graph = TokenGraph([0] * nodes, edges)
    expected = closure_by_squaring(nodes, edges)
    assert torch.equal(graph.ancestors(), expected)
    for node, words in enumerate(graph.packed_ancestors().tolist()):
        bits = [bool((words[i // 64] >> i % 64) & 1) for i in range(nodes)]
        assert bits == expected[node].tolist()
    for parent, child in edges:
        assert graph.depth[child] == graph.depth[parent] + 1


def test_diamond() -> None:
    assert len(DIAMOND) == 5
    assert DIAMOND.depth == (0, 1, 1, 2, 2)
    assert DIAMOND.parents(3) == (1, 2)
    assert DIAMOND.parents(0) == ()
    assert DIAMOND.ancestors().int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def test_from_tree_has_the_same_ancestors() -> None:
    tree = TokenTree((5, 8, 9, 8, 1), (-1, 0, 0, 1, 2))
    graph = TokenGraph.from_tree(tree)
    assert (graph.tokens, graph.depth) == (tree.tokens, tree.depth)
    assert torch.equal(graph.ancestors(), tree.ancestors())
    assert torch.equal(graph.packed_ancestors(), tree.packed_ancestors())


@pytest.mark.parametrize(
    ("tokens", "edges", "message"),
    [
        ((), [], "at least its root"),
        ((1, -2), [(0, 1)], r"tokens\[1\].*got -2"),
        ((1, 2), [(0, 1), (1, 1)], r"edges\[1\] = \(1, 1\)"),  # its own parent
        ((1, 2, 3), [(0, 1), (2, 1), (1, 2)], r"edges\[1\] = \(2, 1\)"),  # a cycle
        ((1, 2), [(0, 2)], r"edges\[0\] = \(0, 2\)"),
        ((1, 2), [(-1, 1)], r"edges\[0\] = \(-1, 1\)"),
        ((1, 2, 3), [(0, 1)], "node 2 has no parent"),
        # 0 -> 1 -> 2 and 0 -> 2: node 2 would be at depth 1 and at depth 2
        ((1, 2, 3), [(0, 1), (1, 2), (0, 2)], r"node 2 has parents \[1, 0\] at depths \[0, 1\]"),
    ],
)
def test_refused(tokens: tuple[int, ...], edges: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenGraph(tokens, edges)
