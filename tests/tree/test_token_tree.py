"""Token trees: closures, packed words and depths against brute force, over random parent arrays."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from branchwise.tree import TokenTree, chain_shape

pytestmark = pytest.mark.core


@st.composite
def parent_arrays(draw: st.DrawFn, max_nodes: int = 80) -> list[int]:
    """Any topological order: each node names any earlier one. More than 64 nodes need a second packed word."""
    nodes = draw(st.integers(1, max_nodes))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))]


def closure_by_walking(parents: list[int]) -> list[list[bool]]:
    matrix = [[False] * len(parents) for _ in parents]
    for node in range(len(parents)):
        walker = node
        while walker >= 0:
            matrix[node][walker] = True
            walker = parents[walker]
    return matrix


def tree_of(parents: list[int] | tuple[int, ...]) -> TokenTree:
    return TokenTree([0] * len(parents), parents)


@given(parent_arrays())
def test_ancestors_are_the_transitive_closure(parents: list[int]) -> None:
    ancestors = tree_of(parents).ancestors()
    assert ancestors.dtype == torch.bool
    assert ancestors.tolist() == closure_by_walking(parents)


@given(parent_arrays(max_nodes=140))
def test_packed_words_are_the_ancestors_bit_by_bit(parents: list[int]) -> None:
    packed = tree_of(parents).packed_ancestors()
    assert packed.dtype == torch.int64
    assert packed.shape == (len(parents), (len(parents) + 63) // 64)
    matrix = closure_by_walking(parents)
    for node, words in enumerate(packed.tolist()):
        for bit in range(64 * packed.shape[1]):
            expected = bit < len(parents) and matrix[node][bit]
            assert (words[bit // 64] >> bit % 64) & 1 == expected


def test_the_sign_bit_of_a_word_is_node_63() -> None:
    packed = tree_of(chain_shape(64)).packed_ancestors()  # 65 nodes in one line
    assert packed[63].tolist() == [-1, 0]
    assert packed[64].tolist() == [-1, 1]
    assert packed[62].tolist() == [2**63 - 1, 0]


@given(parent_arrays())
def test_depth_path_children_leaves(parents: list[int]) -> None:
    tree = tree_of(parents)
    matrix = closure_by_walking(parents)
    for node in range(len(tree)):
        assert tree.depth[node] == sum(matrix[node]) - 1
        assert sorted(tree.path(node)) == [other for other in range(len(tree)) if matrix[node][other]]
        assert [tree.depth[step] for step in tree.path(node)] == list(range(tree.depth[node] + 1))
        assert tree.children(node) == tuple(i for i, parent in enumerate(parents) if parent == node)
    assert tree.leaves == tuple(sorted(set(range(len(tree))) - set(parents)))
    assert tree.height == max(tree.depth)


@given(parent_arrays(max_nodes=30), st.randoms())
def test_renumbering_permutes_the_ancestors(parents: list[int], draw: random.Random) -> None:
    """The same tree written down in another topological order is the same tree."""
    order = [0]  # new number -> old number: repeatedly any node whose parent is already placed
    while len(order) < len(parents):
        order.append(draw.choice([i for i, up in enumerate(parents) if i not in order and up in order]))
    new_of = {old: new for new, old in enumerate(order)}
    renumbered = tree_of([-1, *(new_of[parents[old]] for old in order[1:])])
    assert torch.equal(renumbered.ancestors(), tree_of(parents).ancestors()[order][:, order])


paths = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8)


@given(paths)
def test_from_paths_merges_common_prefixes(token_paths: list[list[int]]) -> None:
    tree = TokenTree.from_paths(9, token_paths)
    prefixes = {tuple(path[:end]) for path in token_paths for end in range(len(path) + 1)} | {()}
    spelled = [tuple(tree.tokens[step] for step in tree.path(node))[1:] for node in range(len(tree))]
    assert tree.tokens[0] == 9
    assert len(spelled) == len(set(spelled)), "two nodes spell the same path"
    assert set(spelled) == prefixes


def test_from_paths_keeps_the_order_of_the_paths() -> None:
    #       0 "1"
    #      /    \             paths 7 8, 5, 7 5
    #   1 "7"   3 "5"
    #   /   \                 numbered by first appearance
    # 2 "8" 4 "5"
    tree = TokenTree.from_paths(1, [(7, 8), (5,), (7, 5)])
    assert tree == TokenTree((1, 7, 8, 5, 5), (-1, 0, 1, 0, 1))
    assert tree.children(0) == (1, 3)
    assert tree.children(1) == (2, 4)
    assert TokenTree.from_paths(1, []) == TokenTree((1,), (-1,))


def test_from_chain() -> None:
    chain = TokenTree.from_chain(4, (5, 6))
    assert (chain.tokens, chain.parents, chain.depth) == ((4, 5, 6), (-1, 0, 1), (0, 1, 2))
    assert torch.equal(chain.ancestors(), torch.ones(3, 3, dtype=torch.bool).tril())
    assert TokenTree.from_chain(4) == TokenTree((4,), (-1,))


def test_star_of_many_children() -> None:
    star = tree_of([-1] + [0] * 100)
    expected = torch.eye(101, dtype=torch.bool)
    expected[:, 0] = True
    assert torch.equal(star.ancestors(), expected)
    assert star.leaves == tuple(range(1, 101))


def test_token_zero_and_equal_siblings_are_allowed() -> None:
    """Nodes are counted by their number: a tree of zeros has all of them (SGLang PR 27509 lost some)."""
    tree = TokenTree((0, 0, 0), (-1, 0, 0))
    assert len(tree) == 3
    assert tree.ancestors().sum() == 5


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((), (), "at least its root"),
        ((1, 2), (-1,), r"2 tokens and 1 parents \(first unmatched index: 1\)"),
        ((1,), (-1, 0), r"1 tokens and 2 parents \(first unmatched index: 1\)"),
        ((1,), (0,), r"parents\[0\] must be -1"),
        ((1, 2), (-1, 1), r"parents\[1\].*got 1"),  # its own parent
        ((1, 2, 3), (-1, 2, 1), r"parents\[1\].*got 2"),  # a cycle
        ((1, 2, 3), (-1, 0, 7), r"parents\[2\].*got 7"),
        ((1, 2, 3), (-1, 0, -1), r"parents\[2\].*got -1"),  # a second root
        ((1, 2, -3), (-1, 0, 0), r"tokens\[2\].*got -3"),
    ],
)
def test_refused(tokens: tuple[int, ...], parents: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenTree(tokens, parents)


@given(parent_arrays(max_nodes=12), st.data())
def test_any_bad_parent_is_named(parents: list[int], data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(parents) - 1))
    bad = data.draw(st.integers(-5, 20).filter(lambda parent: parent != -1 if node == 0 else not 0 <= parent < node))
    parents[node] = bad
    with pytest.raises(ValueError, match=rf"parents\[{node}\].*got {bad}"):
        tree_of(parents)


def test_immutable() -> None:
    tree = TokenTree((1, 2), (-1, 0))
    for name in ("tokens", "parents", "depth", "anything"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(tree, name, ())
    tree.ancestors().zero_()
    tree.packed_ancestors().zero_()
    assert tree.ancestors().tolist() == [[True, False], [True, True]], "a caller must not reach the tree's own state"


def test_equality_and_hash_follow_the_content() -> None:
    tree = TokenTree((1, 2, 2), (-1, 0, 0))
    assert tree == TokenTree([1, 2, 2], [-1, 0, 0])
    assert hash(tree) == hash(TokenTree([1, 2, 2], [-1, 0, 0]))
    assert tree != TokenTree((1, 2, 2), (-1, 0, 1))
    assert tree != TokenTree((1, 2, 3), (-1, 0, 0))
    assert tree != "tree"


def test_tensors_are_taken_as_integers() -> None:
    tree = TokenTree(torch.tensor([3, 4]), torch.tensor([-1, 0]))
    assert tree == TokenTree((3, 4), (-1, 0))
    assert all(type(number) is int for number in (*tree.tokens, *tree.parents))


def test_floats_are_refused_instead_of_truncated() -> None:
    for tokens, parents in (((1.5, 2), (-1, 0)), ((1, 2), (-1, 0.7)), (torch.tensor([1.0, 2.0]), (-1, 0))):
        with pytest.raises(TypeError):
            TokenTree(tokens, parents)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_copies_are_equal(duplicate: Callable[[TokenTree], TokenTree]) -> None:
    tree = TokenTree((1, 2, 3), (-1, 0, 0))
    tree.children(0)  # a cached value must not get in the way
    assert duplicate(tree) == tree


def test_the_child_with_a_token_is_the_first_of_them() -> None:
    tree = TokenTree((5, 8, 9, 8, 9), (-1, 0, 0, 0, 1))
    assert (tree.child_with(0, 8), tree.child_with(0, 9), tree.child_with(1, 9)) == (1, 2, 4)
    assert tree.child_with(0, 5) is None and tree.child_with(4, 9) is None
