"""Whether to accept the most probable branch keeps the target's law: every draft and every coin, in exact fractions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..losslessness import CONTROLS, KINDS, SHAPES, check_rule, toy_pairs
from ..losslessness.drafts import Kind, Shape, kary
from ..verify import RULES
from .exhibits import Axis, BarChart, Table
from .finding import Finding
from .runs import Runs
from .subject import Subject
from .verdicts import Check

#: the claim taken at its word, as the test kit's negative controls have it
NAIVE = ("best path judged with the raw law", "best of the sampled children kept")


@dataclass(frozen=True)
class Enumerated:
    """One rule on one kind of draft.

    Attributes:
        name: of rule and draft.
        distance: total variation between the law of the text and the target's; 0 is lossless.
        tokens_per_step: on average over the toy models.
    """

    name: str
    distance: float
    tokens_per_step: float


@dataclass(frozen=True)
class BestBranch:
    """What was enumerated and counted.

    Attributes:
        naive: the most probable branch, judged as if it had not been chosen.
        lossless: rules that keep the law.
        off_path: accepted runs of the model's own texts that are no path from the root down.
        runs: how many there were.
        pairs: toy models.
    """

    naive: tuple[Enumerated, ...]
    lossless: tuple[Enumerated, ...]
    off_path: int
    runs: int
    pairs: int


def measure(subject: Subject, runs: Runs) -> BestBranch:
    """Toy models of three tokens; the subject only says how many of them."""
    count = subject.effort.toy_pairs
    controls = [control for control in CONTROLS if control.name in NAIVE]
    two_chains, binary = kary(2, 1), SHAPES[1]
    lossless: list[tuple[str, str, Shape]] = [
        ("best_path", "with replacement", two_chains),
        ("traversal", "without replacement", binary),
        ("match", "without replacement", binary),
    ]
    return BestBranch(
        naive=tuple(_enumerate(c.name, c.make, c.kind, c.shape, count) for c in controls),
        lossless=tuple(
            _enumerate(f"rule {name}, children {kind}", RULES[name].make, KINDS[kind], shape, count)
            for name, kind, shape in lossless
        ),
        off_path=sum(figures.off_path for figures in runs.all),
        runs=sum(figures.steps for figures in runs.all),
        pairs=count,
    )


def _enumerate(name: str, make: Callable[[], Any], kind: Kind, shape: Shape, pairs: int) -> Enumerated:
    report = check_rule(make(), kind, shape, toy_pairs()[:pairs])
    return Enumerated(name, float(report.total_variation), float(report.tokens_per_step))


def finding(found: BestBranch) -> Finding:
    """What it says about the claim."""
    worst = max(entry.distance for entry in found.naive)
    kept = max(entry.distance for entry in found.lossless)
    everything = (*found.naive, *found.lossless)
    return Finding(
        headline=f"To accept the most probable branch as it stands moves the law of the text by up to {worst:.2f}; the "
        f"rules of this library by {kept:g}.",
        says=(
            Check(
                "accepted tokens lie on one branch, from the root down to the first rejection",
                f"{found.runs - found.off_path} of {found.runs} accepted runs",
                found.off_path == 0,
            ),
            Check(
                "to take the most probable branch keeps the target's law",
                "; ".join(f"{entry.name}: distance {entry.distance:.2g}" for entry in found.naive),
                all(entry.distance == 0 for entry in found.naive),
            ),
        ),
        instead=(
            Check(
                "rules that do not choose, or account for it, keep the law",
                "; ".join(f"{entry.name}: distance {entry.distance:g}" for entry in found.lossless),
                kept == 0,
            ),
        ),
        how=f"Exact enumeration on {found.pairs} pairs of toy models over three tokens: every draft, every fall of the "
        "coins, in fractions. The distance is the total variation between the law of what is written and the target's: "
        "0 is exactly lossless, 1 has nothing in common. Accepted runs are those of this model's texts above.",
        exhibits=(
            BarChart(
                "Distance from the target's law",
                Axis("total variation"),
                ("distance",),
                tuple((entry.name, (entry.distance,)) for entry in everything),
            ),
            Table(
                "Exact results",
                ("rule", "total variation", "tokens per step"),
                tuple((e.name, f"{e.distance:.4g}", f"{e.tokens_per_step:.3f}") for e in everything),
            ),
        ),
    )
