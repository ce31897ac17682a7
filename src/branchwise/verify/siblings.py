"""What a rule may demand of a draft's shape, with errors that name the nodes."""

from __future__ import annotations

from ..tree import TokenTree


def require_distinct_siblings(tree: TokenTree, rule: str) -> None:
    """Raises a ValueError that names the first two siblings with one token."""
    seen: dict[tuple[int, int], int] = {}
    for node in range(1, len(tree)):
        earlier = seen.setdefault((tree.parents[node], tree.tokens[node]), node)
        if earlier != node:
            raise ValueError(
                f"rule {rule!r} needs siblings of distinct tokens, but nodes {earlier} and {node} below node "
                f"{tree.parents[node]} both carry token {tree.tokens[node]}; merge them (TokenTree.from_paths does) or "
                "use rule 'multiround'"
            )
