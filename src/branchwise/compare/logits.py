"""Which nodes get logits, whether they are right at inner nodes, and what those are needed for."""

from __future__ import annotations

from dataclasses import dataclass

from .exhibits import Axis, BarChart
from .finding import Finding
from .phrases import difference, tiny
from .runs import Runs
from .subject import Subject, relative_difference
from .verdicts import Check

BRANCHING = (3, 2, 1)


@dataclass(frozen=True)
class Logits:
    """What was measured.

    Attributes:
        nodes: of a tree.
        leaves: of them.
        rows: rows of finite logits that came out.
        vocabulary: entries of each.
        inner_difference: greatest difference of an inner node's logits to those of its path alone.
        tolerance: the difference that rounding explains.
        steps: of a text written with trees.
        inner_stops: steps whose walk ended at an inner node.
        budget: nodes of these trees.
    """

    nodes: int
    leaves: int
    rows: int
    vocabulary: int
    inner_difference: float
    tolerance: float
    steps: int
    inner_stops: int
    budget: int


def measure(subject: Subject, runs: Runs) -> Logits:
    """One forward; the text was written before."""
    prompt = subject.prompts[0]
    with subject.lane(prompt) as lane:
        tree = subject.likely_tree(lane, prompt[-1], BRANCHING)
        logits = subject.logits(lane, tree)
        apart = []
        for node in set(range(len(tree))) - set(tree.leaves):
            alone = subject.chain_logits(lane, tree, tree.path(node))
            apart.append(relative_difference(alone[-1], logits[node]))
    figures = runs.trees[-1]
    return Logits(
        nodes=len(tree),
        leaves=len(tree.leaves),
        rows=int(logits.isfinite().all(1).sum()),
        vocabulary=logits.shape[1],
        inner_difference=max(apart),
        tolerance=subject.tolerance,
        steps=figures.steps,
        inner_stops=figures.inner_stops,
        budget=figures.method.budget,
    )


def finding(found: Logits) -> Finding:
    """What it says about the claim."""
    share = found.inner_stops / found.steps
    return Finding(
        headline=f"{found.rows} rows of {found.vocabulary} logits for {found.nodes} nodes, {found.leaves} of them "
        f"leaves; {100 * share:.0f} % of the walks ended at an inner node.",
        says=(
            Check("logits come out for every node", f"{found.rows} of {found.nodes}", found.rows == found.nodes),
            Check(
                "those of inner nodes are those of their paths",
                f"{difference(found.inner_difference)} (rounding explains {tiny(found.tolerance)})",
                found.inner_difference <= found.tolerance,
            ),
            Check(
                "the walk needs them: it stops at inner nodes, too",
                f"{found.inner_stops} of {found.steps} steps took their bonus token from an inner node",
                found.inner_stops > 0,
            ),
        ),
        instead=(),
        how="One forward of a tree of the model's own best tokens; every inner node's logits against those of a "
        "forward of its path alone. Walks: the texts written with trees of up to "
        f"{found.budget} nodes, counted by the node at which each step's accepted path ended.",
        exhibits=(
            BarChart(
                "Where the walk ended",
                Axis("steps"),
                ("at an inner node", "at a leaf"),
                ((f"trees of {found.budget} nodes", (found.inner_stops, found.steps - found.inner_stops)),),
            ),
        ),
    )
