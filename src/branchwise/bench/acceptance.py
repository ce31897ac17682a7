"""How often drafted nodes are accepted, by depth and by rank among siblings. Knows the records of steps."""

from __future__ import annotations

from collections.abc import Iterable

from ..draft.protocol import StepRecord

#: accepted, and out of how many
Counts = dict[str, int]


def count_acceptance(records: Iterable[StepRecord]) -> dict[str, list[Counts]]:
    """What became of the children of accepted nodes, the root among them: others had no chance.

    Args:
        records: of steps.

    Returns:
        ``"depth"``: for depths 1, 2, ...: in how many steps the accepted path went on there, out of those in which it
        had come so far and something was drafted. ``"rank"``: for first children, second children, ... of accepted
        nodes: how many were accepted, out of all.
    """
    by_depth: list[Counts] = []
    by_rank: list[Counts] = []
    for record in records:
        tree, path = record.draft.tree, record.verdict.path
        for depth, node in enumerate(path):
            following = path[depth + 1] if depth + 1 < len(path) else None
            children = tree.children(node)
            if children:
                _count(by_depth, depth, following is not None)
            for rank, child in enumerate(children):
                _count(by_rank, rank, child == following)
    return {"depth": by_depth, "rank": by_rank}


def _count(table: list[Counts], place: int, is_accepted: bool) -> None:
    while len(table) <= place:
        table.append({"accepted": 0, "of": 0})
    table[place]["accepted"] += is_accepted
    table[place]["of"] += 1
