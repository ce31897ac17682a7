r"""Token trees: the shape of a draft, in integers only.

This file knows node numbers, token ids and who is whose parent. It knows no model, no tokenizer and no attention.

A tree is written as two sequences. Node 0 is the root, the last committed token; every other node names an earlier node
as its parent, so any topological order is valid, breadth-first or not:

        0 "the"                     tokens  = (5, 8, 9, 8)
       / \                         parents = (-1, 0, 0, 1)
  1 "cat" 2 "dog"
     |                              ancestors:   0 1 2 3
  3 "cat"                                     0  1 . . .
                                              1  1 1 . .
                                              2  1 . 1 .
                                              3  1 1 . 1

Row i of the ancestor matrix is what node i may attend to inside the tree: its own path and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import index

import torch
from torch import Tensor

WORD_BITS = 64


class TokenTree:
    """A rooted tree of token ids in topological order. Immutable.

    Args:
        tokens: token id of every node, ``N >= 1`` of them; node 0 is the root.
        parents: parent of every node; ``parents[0] == -1`` and ``0 <= parents[i] < i`` otherwise. Two siblings may
            carry the same token; rules that need distinct siblings raise.

    Raises:
        ValueError: the tree is empty, the lengths differ, a token is negative, or a parent is not an earlier node. The
            message names the first bad index.
        TypeError: a token or a parent is not an integer.
    """

    __slots__ = ("__dict__", "depth", "parents", "tokens")

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depth: tuple[int, ...]

    def __init__(self, tokens: Iterable[int], parents: Iterable[int]) -> None:
        token_ids = tuple(map(index, tokens))
        parent_ids = tuple(map(index, parents))
        if not token_ids:
            raise ValueError("a token tree needs at least its root, got no tokens")
        if len(token_ids) != len(parent_ids):
            raise ValueError(
                f"tokens and parents must have one length, got {len(token_ids)} tokens and {len(parent_ids)} parents "
                f"(first unmatched index: {min(len(token_ids), len(parent_ids))})"
            )
        if parent_ids[0] != -1:
            raise ValueError(f"parents[0] must be -1 (node 0 is the root), got {parent_ids[0]}")
        depth = [0] * len(token_ids)
        for node in range(1, len(parent_ids)):
            parent = parent_ids[node]
            if not 0 <= parent < node:
                raise ValueError(
                    f"parents[{node}] must name an earlier node (0 <= parent < {node}), got {parent}: a forward or "
                    "cyclic parent"
                )
            depth[node] = depth[parent] + 1
        if min(token_ids) < 0:
            node = next(i for i, token in enumerate(token_ids) if token < 0)
            raise ValueError(f"tokens[{node}] must be a token id >= 0, got {token_ids[node]}")
        object.__setattr__(self, "tokens", token_ids)
        object.__setattr__(self, "parents", parent_ids)
        object.__setattr__(self, "depth", tuple(depth))

    @classmethod
    def from_chain(cls, root: int, tokens: Sequence[int] = ()) -> TokenTree:
        """The tree without branches: ``root`` followed by ``tokens``, each the parent of the next."""
        return cls((root, *tokens), range(-1, len(tokens)))

    @classmethod
    def from_paths(cls, root: int, paths: Iterable[Sequence[int]]) -> TokenTree:
        """Merges the common prefixes of ``paths`` (token sequences below the root) into one trie.

        Nodes are numbered in order of first appearance, so no two siblings share a token and children keep the order of
        the paths.
        """
        tokens, parents = [int(root)], [-1]
        child_of: dict[tuple[int, int], int] = {}
        for path in paths:
            node = 0
            for token in path:
                key = (node, int(token))
                child = child_of.get(key)
                if child is None:
                    child = len(tokens)
                    child_of[key] = child
                    tokens.append(int(token))
                    parents.append(node)
                node = child
        return cls(tokens, parents)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a TokenTree is immutable: cannot set {name}")

    def __reduce__(self) -> tuple[type[TokenTree], tuple[tuple[int, ...], tuple[int, ...]]]:
        # copying and pickling would otherwise restore the slots one by one, which immutability forbids
        return TokenTree, (self.tokens, self.parents)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        return self.tokens == other.tokens and self.parents == other.parents

    def __hash__(self) -> int:
        return hash((self.tokens, self.parents))

    def __repr__(self) -> str:
        return f"TokenTree(tokens={self.tokens}, parents={self.parents})"

    def _repr_html_(self) -> str:
        # drawing is floors above: imported when a notebook asks
        from ..show.display import tree_html

        return tree_html(self)

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        children: list[list[int]] = [[] for _ in self.tokens]
        for node in range(1, len(self.tokens)):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    def children(self, node: int) -> tuple[int, ...]:
        """Children of ``node`` in draw order (node order)."""
        return self._children[node]

    def child_with(self, node: int, token: int) -> int | None:
        """The first child of ``node`` that carries ``token``; None when there is none."""
        return next((child for child in self._children[node] if self.tokens[child] == token), None)

    def path(self, node: int) -> tuple[int, ...]:
        """Node numbers from the root down to ``node``, both included."""
        nodes = []
        while node != -1:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, in node order."""
        return tuple(node for node, children in enumerate(self._children) if not children)

    @property
    def height(self) -> int:
        """Depth of the deepest node; 0 for a lone root."""
        return max(self.depth)

    @cached_property
    def _ancestor_bits(self) -> tuple[int, ...]:
        return closure_bits([(parent,) if parent >= 0 else () for parent in self.parents])

    def ancestors(self) -> Tensor:
        """Reflexive-transitive closure of parent: bool ``[N, N]``, row i marks the path from the root to i."""
        return unpack_bits(self._ancestor_bits)

    def packed_ancestors(self) -> Tensor:
        """The ancestor matrix as int64 words ``[N, ceil(N / 64)]``; bit ``j % 64`` of word ``j // 64`` is node j."""
        return pack_bits(self._ancestor_bits)


def closure_bits(parents_of: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Ancestor set of every node as one Python integer per node, bit j set for ancestor-or-self j.

    A row is its own bit or-ed with the finished rows of its parents, which come earlier.
    """
    rows: list[int] = []
    for node, parents in enumerate(parents_of):
        row = 1 << node
        for parent in parents:
            row |= rows[parent]
        rows.append(row)
    return tuple(rows)


def pack_bits(rows: Sequence[int]) -> Tensor:
    """Integers of N bits each to int64 words ``[N, ceil(N / 64)]``."""
    words = -(-len(rows) // WORD_BITS)
    raw = b"".join(row.to_bytes(words * 8, "little") for row in rows)
    return torch.frombuffer(bytearray(raw), dtype=torch.int64).view(len(rows), words)


def unpack_bits(rows: Sequence[int]) -> Tensor:
    """Integers of N bits each to a bool matrix ``[N, N]``."""
    n = len(rows)
    width = -(-n // 8)
    raw = b"".join(row.to_bytes(width, "little") for row in rows)
    octets = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(n, width, 1)
    bits = octets.bitwise_and(_OCTET_BITS).ne(0)  # [N, width, 8]
    return bits.view(n, width * 8)[:, :n].contiguous()


_OCTET_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
