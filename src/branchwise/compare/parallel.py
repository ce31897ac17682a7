"""Tokens verified per forward: a chain through standard attention, a tree through tree attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..tree import TokenTree
from .exhibits import Axis, BarChart
from .finding import Finding
from .phrases import difference, tiny
from .subject import Subject, relative_difference
from .verdicts import Check

CHAIN = 8
BRANCHING = (3, 2, 1)


@dataclass(frozen=True)
class Parallel:
    """What was measured.

    Attributes:
        chain_drafted: drafted tokens of the chain.
        chain_scored: positions that got logits from one forward with the model's own causal attention.
        chain_difference: greatest difference to feeding them one per forward.
        tree_nodes: nodes of the tree.
        tree_branches: its leaves.
        tree_scored: nodes that got logits from one forward.
        tree_difference: greatest difference to every branch as a chain of its own.
        tolerance: the difference that rounding explains.
        own_attention: name of the model's own attention.
    """

    chain_drafted: int
    chain_scored: int
    chain_difference: float
    tree_nodes: int
    tree_branches: int
    tree_scored: int
    tree_difference: float
    tolerance: float
    own_attention: str


@torch.no_grad()
def measure(subject: Subject) -> Parallel:
    """A chain of the target's own text and a tree of its best tokens."""
    prompt = subject.prompts[0]
    with subject.lane(prompt) as lane:
        tree = subject.likely_tree(lane, prompt[-1], BRANCHING)
        logits = subject.logits(lane, tree)
        apart = []
        for path in map(tree.path, tree.leaves):
            apart.append(relative_difference(subject.chain_logits(lane, tree, path), logits[list(path)]))
        drafted = subject.likely_tree(lane, prompt[-1], (1,) * CHAIN).tokens[1:]
        one_by_one = []
        for token in (prompt[-1], *drafted):
            one_by_one.append(subject.target.forward({lane: TokenTree.from_chain(token)})[lane].logits[0])
            subject.target.commit({lane: (0,)})
    ids = torch.tensor([[*prompt, *drafted]], device=subject.device)
    own = subject.model(ids, use_cache=False).logits[0, -len(drafted) - 1 :]  # [drafted + 1, V]
    return Parallel(
        chain_drafted=len(drafted),
        chain_scored=own.shape[0],
        chain_difference=relative_difference(torch.stack(one_by_one), own),
        tree_nodes=len(tree),
        tree_branches=len(tree.leaves),
        tree_scored=logits.shape[0],
        tree_difference=max(apart),
        tolerance=subject.tolerance,
        own_attention=str(subject.model.config._attn_implementation),
    )


def finding(found: Parallel) -> Finding:
    """What it says about the claim."""
    chain_agrees = found.chain_difference <= found.tolerance
    tree_agrees = found.tree_difference <= found.tolerance
    return Finding(
        headline=f"One forward of standard attention scored {found.chain_scored} positions of a chain, one of tree "
        f"attention {found.tree_scored} nodes of {found.tree_branches} branches.",
        says=(
            Check(
                "standard attention scores one drafted token per forward",
                f"{found.chain_scored} positions in one forward",
                not (found.chain_scored > 1 and chain_agrees),
            ),
            Check(
                "tree attention scores all branches in one forward",
                f"{found.tree_scored} of {found.tree_nodes} nodes; to each branch run alone: "
                f"{difference(found.tree_difference)}",
                found.tree_scored == found.tree_nodes and found.tree_branches > 1 and tree_agrees,
            ),
        ),
        instead=(
            Check(
                f"standard attention verifies a chain of {found.chain_drafted} drafted tokens in one forward",
                f"logits at {found.chain_scored} positions; to one token per forward: "
                f"{difference(found.chain_difference)} (rounding explains {tiny(found.tolerance)})",
                found.chain_scored == found.chain_drafted + 1 and chain_agrees,
            ),
            Check(
                "what the tree adds is branches",
                f"{found.tree_branches} branches of {found.tree_nodes} nodes, against 1",
                found.tree_branches > 1 and tree_agrees,
            ),
        ),
        how=f"The chain: prompt and {found.chain_drafted} tokens through the unmodified model with its own attention "
        f"({found.own_attention}), once in one forward and once token by token. The tree: the model's own best tokens, "
        "once in one forward and once branch by branch. Logits are compared, the greatest difference counts.",
        exhibits=(
            BarChart(
                "Positions scored by one forward",
                Axis("positions"),
                ("positions",),
                (
                    ("plain decoding", (1.0,)),
                    ("a chain, standard attention", (float(found.chain_scored),)),
                    ("a tree, tree attention", (float(found.tree_scored),)),
                ),
            ),
        ),
    )
