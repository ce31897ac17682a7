"""Sequential steps: forwards to verify k branches, and forwards to emit a text."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from .cost import comb
from .exhibits import Axis, BarChart, Table
from .finding import Finding
from .phrases import counted
from .runs import Figures, Runs
from .subject import Subject
from .verdicts import Check
from .witness import watching

SHAPES = ((2, 4), (4, 4), (8, 4), (8, 8))


@dataclass(frozen=True)
class Verified:
    """One set of candidates.

    Attributes:
        branches: how many.
        depth: tokens of each.
        forwards: of the model, counted, to score all of them.
    """

    branches: int
    depth: int
    forwards: int

    @property
    def claimed(self) -> float:
        """depth x log2(branches)."""
        return self.depth * log2(self.branches)


@dataclass(frozen=True)
class Steps:
    """What was counted.

    Attributes:
        verified: candidates of several shapes.
        figures: plain decoding first, then chain and tree by budget.
    """

    verified: tuple[Verified, ...]
    figures: tuple[Figures, ...]


def measure(subject: Subject, runs: Runs) -> Steps:
    """Counts calls of the model for some trees; the texts were written before."""
    verified = []
    with subject.lane(subject.text(32)) as lane:
        for branches, depth in SHAPES:
            with watching(subject.target) as seen:
                subject.logits(lane, comb(branches, depth))
            verified.append(Verified(branches, depth, seen.forwards))
    return Steps(tuple(verified), runs.all)


def finding(found: Steps) -> Finding:
    """What it says about the claim."""
    plain, tree = found.figures[0], found.figures[-1]
    prompts = plain.prompts
    tokens = plain.tokens // prompts
    as_claimed = [entry for entry in found.verified if entry.forwards >= entry.claimed]
    over = sum(figures.over_bound for figures in found.figures)
    steps = sum(figures.steps for figures in found.figures)
    counts = sorted({entry.forwards for entry in found.verified})
    chain = found.figures[-2]
    return Finding(
        headline=f"{tokens} tokens took {plain.steps / prompts:.0f} forwards plainly, "
        f"{chain.steps / prompts:.0f} with chains and {tree.steps / prompts:.0f} with trees of "
        f"{tree.method.budget} nodes.",
        says=(
            Check(
                "verifying takes depth x log(branches) sequential steps",
                f"in {len(as_claimed)} of {len(found.verified)} shapes; {' or '.join(map(str, counts))} forward each",
                len(as_claimed) == len(found.verified),
            ),
        ),
        instead=(
            Check(
                "verifying takes one forward",
                "; ".join(f"{e.branches} branches of {e.depth}: {e.forwards}" for e in found.verified),
                counts == [1],
            ),
            Check("a step emits at most depth + 1 tokens", f"more in {over} of {steps} steps", over == 0),
            Check(
                "trees need fewer sequential steps than plain decoding",
                f"{tree.steps} against {plain.steps}",
                tree.steps < plain.steps,
            ),
        ),
        how=f"Calls of the model are counted by a hook. The texts: {counted(prompts, 'prompt')}, {tokens} new tokens "
        "each, greedy, end-of-text ignored so that all methods write equally many; chain and tree draft from n-grams "
        "and recycled tokens. The first token costs the same prefill for all and is not counted.",
        exhibits=(
            BarChart(
                f"Sequential forwards to emit {tokens} tokens",
                Axis("forwards per prompt"),
                ("forwards",),
                tuple((figures.method.label, (figures.steps / prompts,)) for figures in found.figures),
            ),
            Table(
                "Forwards to verify",
                ("branches", "tokens each", "depth x log2(branches)", "forwards counted"),
                tuple((str(e.branches), str(e.depth), f"{e.claimed:.0f}", str(e.forwards)) for e in found.verified),
            ),
        ),
    )
