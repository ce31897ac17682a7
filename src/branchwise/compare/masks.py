"""The two masks as attention really gets them, and what a mask across branches would do.

Nothing is rebuilt here: the masks are what the library hands to its attention in the forward, taken from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..show.step_json import tree_json
from ..tree import TokenTree
from .exhibits import Axis, BarChart, MaskPicture, TreePicture
from .finding import Finding
from .phrases import difference, tiny
from .subject import Subject, relative_difference
from .verdicts import Check
from .witness import watching

CHAIN = 7
BRANCHING = (3, 2, 1)

Grid = tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class Masks:
    """What was seen and what came of it.

    Attributes:
        committed: committed tokens before the nodes.
        chain: what the nodes of a chain see of each other.
        chain_labels: their tokens.
        tree: what the nodes of a tree see of each other.
        tree_parents: parents of the tree.
        tree_labels: its tokens.
        drawing: the tree for the report.
        sees_all_committed: whether every node sees every committed token (within the window, if there is one).
        other: the sibling whose token was exchanged.
        outside: nodes outside that sibling's branch.
        exchanged: greatest difference of their logits after the exchange.
        alone: greatest difference of any node's logits to those of its path alone: rounding, as it is here.
        crossed: greatest difference of any node's logits to the true ones, when nodes see all others at their depth.
        crossed_best: nodes whose best token is another one then.
        crossed_exchanged: as ``exchanged``, under that mask.
        tolerance: the difference that rounding explains.
    """

    committed: int
    chain: Grid
    chain_labels: tuple[str, ...]
    tree: Grid
    tree_parents: tuple[int, ...]
    tree_labels: tuple[str, ...]
    drawing: Mapping[str, Any]
    sees_all_committed: bool
    other: int
    outside: int
    exchanged: float
    alone: float
    crossed: float
    crossed_best: int
    crossed_exchanged: float
    tolerance: float

    @property
    def depth(self) -> list[int]:
        """Of the tree's nodes."""
        depth: list[int] = []
        for parent in self.tree_parents:
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
        return depth

    def paths(self) -> list[set[int]]:
        """Every node's ancestors and itself, by walking from parent to parent."""
        paths: list[set[int]] = []
        for node, parent in enumerate(self.tree_parents):
            paths.append({node} | (paths[parent] if parent >= 0 else set()))
        return paths

    def seen(self) -> list[set[int]]:
        """What every node of the tree sees, by the mask."""
        return [{column for column, visible in enumerate(row) if visible} for row in self.tree]


def measure(subject: Subject) -> Masks:
    """One chain and one tree behind the first prompt."""
    prompt = subject.prompts[0]
    with subject.lane(prompt) as lane:
        tree = subject.likely_tree(lane, prompt[-1], BRANCHING)
        chain = subject.likely_tree(lane, prompt[-1], (1,) * CHAIN)
        with watching(subject.target) as seen:
            subject.logits(lane, chain)
            true = subject.logits(lane, tree)
        other = tree.children(0)[-1]
        swapped = _with_token(tree, other, _unused(tree, subject.target.vocab_size))
        outside = [node for node in range(len(tree)) if other not in tree.path(node)]
        after = subject.logits(lane, swapped)
        apart = [
            relative_difference(true[list(path)], subject.chain_logits(lane, tree, path))
            for path in map(tree.path, tree.leaves)
        ]
        depth = torch.tensor(tree.depth, device=subject.device)

        def across(nodes: Tensor) -> Tensor:
            return nodes | (depth[:, None] == depth[None, :])

        with watching(subject.target, across):
            crossed = subject.logits(lane, tree)
            crossed_after = subject.logits(lane, swapped)
    slots = seen.committed[0]
    chain_mask, tree_mask = seen.masks
    return Masks(
        committed=slots,
        chain=_grid(chain_mask[:, slots:]),
        chain_labels=tuple(map(subject.word, chain.tokens)),
        tree=_grid(tree_mask[:, slots:]),
        tree_parents=tree.parents,
        tree_labels=tuple(map(subject.word, tree.tokens)),
        drawing=tree_json(tree, subject.word),
        sees_all_committed=bool(tree_mask[:, :slots].all()),
        other=other,
        outside=len(outside),
        exchanged=relative_difference(true[outside], after[outside]),
        alone=max(apart),
        crossed=relative_difference(true, crossed),
        crossed_best=int((true.argmax(1) != crossed.argmax(1)).sum()),
        crossed_exchanged=relative_difference(crossed[outside], crossed_after[outside]),
        tolerance=subject.tolerance,
    )


def _grid(mask: Tensor) -> Grid:
    return tuple(tuple(row) for row in mask.tolist())


def _with_token(tree: TokenTree, node: int, token: int) -> TokenTree:
    return TokenTree([token if i == node else t for i, t in enumerate(tree.tokens)], tree.parents)


def _unused(tree: TokenTree, vocab_size: int) -> int:
    return next(token for token in range(vocab_size // 2, vocab_size) if token not in tree.tokens)


def _how(found: Masks) -> str:
    rows = "visible to every node" if found.sees_all_committed else "visible as far as the sliding window reaches"
    return (
        "The masks are those that the library handed to the attention in a forward of the model, between the nodes; "
        f"the {found.committed} committed tokens before them are {rows} and not drawn."
    )


def standard_finding(found: Masks) -> Finding:
    """What the chain's mask says about the claim on standard attention."""
    places = [(i, j) for i in range(len(found.chain)) for j in range(len(found.chain))]
    visible = {(i, j) for i, j in places if found.chain[i][j]}
    above, on = [(i, j) for i, j in visible if j > i], [(i, j) for i, j in visible if i == j]
    below = [(i, j) for i, j in visible if j < i]
    size = len(found.chain)
    pairs = size * (size - 1) // 2
    return Finding(
        headline=f"Of {size} x {size} entries, {len(below)} of {pairs} below the diagonal are visible, {len(on)} of "
        f"{size} on it and {len(above)} of {pairs} above it.",
        says=(
            Check("no token sees a later one", f"{len(above)} later tokens visible", not above),
            Check("what is visible is the upper triangle", f"{len(above)} of {pairs} visible", len(above) == pairs),
            Check("a token does not see itself (strictly)", f"{len(on)} of {size} do", not on),
        ),
        instead=(
            Check("what is visible is the lower triangle", f"{len(below)} of {pairs} visible", len(below) == pairs),
            Check("the diagonal belongs to it", f"{len(on)} of {size} tokens see themselves", len(on) == size),
        ),
        how=_how(found),
        exhibits=(MaskPicture("The mask of a chain", found.committed, found.chain, found.chain_labels),),
    )


def tree_finding(found: Masks) -> Finding:
    """What the tree's mask, and a mask across branches, say about attending across branches."""
    depth, paths, seen = found.depth, found.paths(), found.seen()
    others = [(i, j) for i, j in _pairs(len(depth)) if depth[i] == depth[j]]
    across = sum(j in seen[i] for i, j in others)
    beyond = sum(len(columns - path) for columns, path in zip(seen, paths, strict=True))
    noise = 2 * max(found.alone, found.exchanged)
    wrong = found.crossed > noise
    return Finding(
        headline=f"Nodes see {across} of {len(others)} others at their depth. Made to see them, their logits move by "
        f"{tiny(found.crossed)} of their spread, and {found.crossed_best} of {len(depth)} nodes want another token.",
        says=(
            Check("nodes see others at their depth", f"{across} of {len(others)} pairs", across > 0),
            Check(
                "with a mask across branches the logits are those of the node's own text",
                f"they differ by {difference(found.crossed)}; under the true mask by {difference(found.alone)}",
                not wrong,
            ),
        ),
        instead=(
            Check("a node sees ancestors and itself only", f"{beyond} entries beyond these", beyond == 0),
            Check(
                "under a mask across branches a node's logits depend on its siblings",
                f"one sibling's token exchanged: the others' logits move by {difference(found.crossed_exchanged)}; "
                f"best token changed at {found.crossed_best} of {len(depth)} nodes",
                found.crossed_exchanged > noise and wrong,
            ),
        ),
        how=_how(found)
        + " Then the same tree again with a mask made for this purpose, in which nodes also see all others at their "
        "depth.",
        exhibits=(
            TreePicture("The tree", found.drawing),
            MaskPicture("Its mask", found.committed, found.tree, found.tree_labels),
            MaskPicture(
                "A mask across branches (wrong)",
                found.committed,
                tuple(
                    tuple(visible or depth[i] == depth[j] for j, visible in enumerate(row))
                    for i, row in enumerate(found.tree)
                ),
                found.tree_labels,
            ),
        ),
    )


def sibling_finding(found: Masks) -> Finding:
    """What the tree's mask and an exchanged token say about siblings."""
    paths, seen = found.paths(), found.seen()
    wanted = sum(map(len, paths))
    visible = sum(len(columns & path) for columns, path in zip(seen, paths, strict=True))
    beyond = sum(map(len, seen)) - visible
    hidden = len(paths) ** 2 - wanted
    return Finding(
        headline=f"With node {found.other}'s token exchanged, the logits of the {found.outside} nodes outside its "
        f"branch change by {difference(found.exchanged)}.",
        says=(
            Check("no node sees another branch", f"{beyond} of {hidden} such entries visible", beyond == 0),
            Check("every ancestor and itself are visible", f"{visible} of {wanted} entries visible", visible == wanted),
            Check(
                "another token in a sibling's place changes nothing for the others",
                f"{difference(found.exchanged)} (rounding explains {tiny(found.tolerance)})",
                found.exchanged <= found.tolerance,
            ),
        ),
        instead=(),
        how="Two forwards of one tree that differ in the token of one node; logits of all nodes that do not descend "
        f"from it are compared, the greatest difference counts. {_how(found)}",
        exhibits=(
            BarChart(
                "Logits of the other nodes when one sibling's token is exchanged",
                Axis("greatest move, as a share of their spread"),
                ("move",),
                (
                    ("the real mask", (found.exchanged,)),
                    ("a mask across branches", (found.crossed_exchanged,)),
                ),
            ),
        ),
    )


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(count) for j in range(count) if i != j]
