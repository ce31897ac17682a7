"""Token graphs: nodes that may have several parents.

Tree attention only needs to know who is whose ancestor, so it takes any directed acyclic graph. A verification rule
needs one history per node, so it takes trees only.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from torch import Tensor

from .token_tree import TokenTree, closure_bits, pack_bits, unpack_bits


class TokenGraph:
    """A directed acyclic graph of token ids in topological order, for attention only. Immutable by convention.

    Args:
        tokens: token id of every node; node 0 is the root.
        edges: pairs ``(parent, child)`` with ``parent < child``; every node but the root needs at least one.

    Raises:
        ValueError: an edge points backwards or out of range, a node has no parent, or the parents of a node lie at
            different depths (its position would be ambiguous). The message names the first bad node.
        TypeError: a token or an end of an edge is not an integer.
    """

    tokens: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    depth: tuple[int, ...]

    def __init__(self, tokens: Iterable[int], edges: Iterable[tuple[int, int]]) -> None:
        self.tokens = tuple(map(index, tokens))
        self.edges = tuple((index(parent), index(child)) for parent, child in edges)
        if not self.tokens:
            raise ValueError("a token graph needs at least its root, got no tokens")
        if min(self.tokens) < 0:
            node = next(i for i, token in enumerate(self.tokens) if token < 0)
            raise ValueError(f"tokens[{node}] must be a token id >= 0, got {self.tokens[node]}")
        parents: list[list[int]] = [[] for _ in self.tokens]
        for number, (parent, child) in enumerate(self.edges):
            if not 0 <= parent < child < len(self.tokens):
                raise ValueError(
                    f"edges[{number}] = ({parent}, {child}) must go from an earlier node to a later one "
                    f"(0 <= parent < child < {len(self.tokens)})"
                )
            parents[child].append(parent)
        depth = [0] * len(self.tokens)
        for node in range(1, len(self.tokens)):
            if not parents[node]:
                raise ValueError(f"node {node} has no parent; only node 0 may be without one")
            depths = {depth[parent] for parent in parents[node]}
            if len(depths) > 1:
                raise ValueError(
                    f"node {node} has parents {parents[node]} at depths {sorted(depths)}; all parents of a node must "
                    "have one depth, or the node has no single position"
                )
            depth[node] = depths.pop() + 1
        self.depth = tuple(depth)
        self._parents = tuple(map(tuple, parents))

    @classmethod
    def from_tree(cls, tree: TokenTree) -> TokenGraph:
        """The same nodes and edges as ``tree``."""
        return cls(tree.tokens, [(tree.parents[node], node) for node in range(1, len(tree))])

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"TokenGraph(tokens={self.tokens}, edges={self.edges})"

    def _repr_html_(self) -> str:
        # drawing is floors above: imported when a notebook asks
        from ..show.display import tree_html

        return tree_html(self)

    def parents(self, node: int) -> tuple[int, ...]:
        """All parents of ``node``."""
        return self._parents[node]

    def ancestors(self) -> Tensor:
        """Reflexive-transitive closure over all parents: bool ``[N, N]``."""
        return unpack_bits(closure_bits(self._parents))

    def packed_ancestors(self) -> Tensor:
        """The closure as int64 words ``[N, ceil(N / 64)]``, laid out as in `TokenTree.packed_ancestors`."""
        return pack_bits(closure_bits(self._parents))
