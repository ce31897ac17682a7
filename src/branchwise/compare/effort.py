"""How much is measured: everything that ``--quick`` makes smaller, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Sizes of the measurements.

    Attributes:
        name: for the report.
        new_tokens: tokens to emit where steps are counted.
        prompts: how many of `subject.PROMPTS`.
        budgets: node budgets at which chain and tree stand side by side, rising.
        sweep_tokens: tokens per run where depth and width are varied.
        depths: depths that are varied.
        widths: children per node on the best path.
        nodes: tree sizes whose forward is timed, rising.
        branch_nodes: drafted nodes that are arranged in more and more branches; a power of 2.
        context: committed tokens before those trees.
        repeats: timed calls of each; the best counts, others on the machine can only add to it.
        reuse_tokens: tokens per run of the target's own layers as drafter.
        toy_pairs: toy models whose drafts and coins are enumerated.
    """

    name: str
    new_tokens: int
    prompts: int
    budgets: tuple[int, ...]
    sweep_tokens: int
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    nodes: tuple[int, ...]
    branch_nodes: int
    context: int
    repeats: int
    reuse_tokens: int
    toy_pairs: int


QUICK = Effort(
    name="quick",
    new_tokens=128,
    prompts=1,
    budgets=(9,),
    sweep_tokens=24,
    depths=(1, 2, 4, 8),
    widths=(1, 3),
    nodes=(1, 2, 4, 8, 16, 32, 64, 128),
    branch_nodes=32,
    context=128,
    repeats=3,
    reuse_tokens=16,
    toy_pairs=2,
)
FULL = Effort(
    name="full",
    new_tokens=128,
    prompts=3,
    budgets=(9, 17, 33),
    sweep_tokens=96,
    depths=(1, 2, 3, 4, 6, 8),
    widths=(1, 2, 3, 4),
    nodes=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    branch_nodes=32,
    context=512,
    repeats=7,
    reuse_tokens=96,
    toy_pairs=8,
)
