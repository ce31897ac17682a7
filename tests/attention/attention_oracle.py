"""Tree attention with loops over (row, head, node) in float64. Shares no code with the package.

Ancestors are found by walking parents, visibility by comparing positions, the softmax is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Parents = Sequence[Sequence[int]]
"""Parents of every node; none for the root, one in a tree, several in a graph."""


@dataclass(frozen=True)
class Drawn:
    """The shape of one row's tree, as the oracle walks it."""

    parents: Parents

    def ancestors(self, node: int) -> set[int]:
        found = {node}
        waiting = [node]
        while waiting:
            for parent in self.parents[waiting.pop()]:
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return found

    def depth(self, node: int) -> int:
        steps = 0
        while self.parents[node]:
            node = self.parents[node][0]
            steps += 1
        return steps


def oracle_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    trees: Sequence[Drawn],
    committed: Sequence[int],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Float64 ``[B, H, N, Dv]``; arguments as in `tree_attention`, one `Drawn` per batch row."""
    batch, heads, width, _ = query.shape
    group = heads // key.shape[1]
    slots = key.shape[2] - width
    output = torch.zeros(batch, heads, width, value.shape[3], dtype=torch.float64)
    for row in range(batch):
        tree = trees[row]
        for node in range(len(tree.parents)):
            position = committed[row] + tree.depth(node)
            visible = [slot for slot in range(committed[row]) if window is None or position - slot < window]
            for other in tree.ancestors(node):
                if window is None or position - (committed[row] + tree.depth(other)) < window:
                    visible.append(slots + other)
            for head in range(heads):
                seen_keys = key[row, head // group, visible].double()  # [columns, D]
                seen_values = value[row, head // group, visible].double()  # [columns, Dv]
                scores = seen_keys @ query[row, head, node].double() * scale  # [columns]
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = torch.exp(scores)
                total = weights.sum()
                if sinks is not None:
                    total = total + torch.exp(sinks[head].double())
                output[row, head, node] = weights / total @ seen_values
    return output
