"""Where the time of a step goes: draft, forward, rule, commit and the rest; and what is needed beside the forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..draft import Drafter
from ..target.huggingface import HuggingFaceTarget
from .exhibits import Axis, BarChart, Table
from .finding import Finding
from .parallel import BRANCHING
from .phrases import difference, percent, tiny
from .runs import PARTS, Figures, Runs
from .subject import Subject, relative_difference
from .verdicts import Check
from .witness import watching

#: a step's overhead is large from this share on
LARGE = 0.25
#: of parts, in the words of the report
NAMES = {"draft": "draft", "forward": "forward", "verify": "rule", "commit": "commit", "other": "rest"}
#: what is not the target's forward
OUTSIDE = tuple(part for part in PARTS if part != "forward")


@dataclass(frozen=True)
class Shares:
    """What was measured.

    Attributes:
        chain, tree: at the same budget, the largest one.
        chain_forwards, tree_forwards: calls of the model per step of a short text written with each.
        chain_drafter, tree_drafter: what kind of drafter made them.
        wants_features: whether the drafter of the trees reads the target's hidden states.
        stock_difference: greatest difference of a tree's logits between this library's choice of attention and torch's
            own attention with a mask.
        tolerance: the difference that rounding explains.
        model_class: of the model, which is unmodified.
    """

    chain: Figures
    tree: Figures
    chain_forwards: float
    tree_forwards: float
    chain_drafter: str
    tree_drafter: str
    wants_features: bool
    stock_difference: float
    tolerance: float
    model_class: str


def measure(subject: Subject, runs: Runs) -> Shares:
    """Two forwards and one short text; the long texts were written before."""
    prompt = subject.prompts[0]
    chain, tree = runs.chains[-1], runs.trees[-1]
    drafters: list[Drafter] = [figures.method.drafter() for figures in (chain, tree)]
    with subject.lane(prompt) as lane:
        draft = subject.likely_tree(lane, prompt[-1], BRANCHING)
        logits = subject.logits(lane, draft)
    stock = HuggingFaceTarget(subject.model, attention="folded")
    number = stock.open(len(prompt) + len(draft), longest=len(prompt) + len(draft))
    stock.prefill(number, prompt)
    difference = relative_difference(stock.forward({number: draft})[number].logits, logits)
    return Shares(
        chain=chain,
        tree=tree,
        chain_forwards=_forwards_per_step(subject, chain),
        tree_forwards=_forwards_per_step(subject, tree),
        chain_drafter=drafters[0].name,
        tree_drafter=drafters[1].name,
        wants_features=bool(drafters[1].feature_layers),
        stock_difference=difference,
        tolerance=subject.tolerance,
        model_class=type(subject.model).__name__,
    )


def _forwards_per_step(subject: Subject, figures: Figures) -> float:
    prefill = -(-(len(subject.prompts[0]) - 1) // subject.target.prefill_chunk)
    with watching(subject.target) as seen:
        run = subject.run(figures.method.drafter(), figures.method.budget, subject.new_tokens(16))
    return (seen.forwards - prefill) / run.steps


def coupling_finding(found: Shares) -> Finding:
    """What the shares say about draft and target."""
    parts = ", ".join(f"{NAMES[part]} {percent(found.tree.share(part))}" for part in PARTS)
    same = found.chain_drafter == found.tree_drafter
    return Finding(
        headline=f"A tree step divides into {parts}; the drafter is the one that drafts chains.",
        says=(
            Check(
                "with a chain, draft and target run apart",
                f"{found.chain_forwards:.2f} calls of the model per step: none while drafting",
                found.chain_forwards == 1,
            ),
            Check(
                "with a tree they are coupled: the drafter works on the target's inner states",
                "it reads the target's hidden states"
                if found.wants_features
                else "it is told tokens, and nothing else",
                found.wants_features,
            ),
        ),
        instead=(
            Check(
                "one drafter drafts chains and trees",
                f"{found.chain_drafter!r} for chains, {found.tree_drafter!r} for trees",
                same,
            ),
            Check(
                "with a tree they run as much apart",
                f"{found.tree_forwards:.2f} calls of the model per step",
                found.tree_forwards == found.chain_forwards == 1,
            ),
        ),
        how="Seconds of every step by part, as the loop books them, over the texts above; chain and tree at "
        f"{found.tree.method.budget} nodes. Calls of the model are counted by a hook in a text of its own.",
        exhibits=(_shares("Shares of a step", (found.chain, found.tree)), _milliseconds((found.chain, found.tree))),
    )


def overhead_finding(found: Shares) -> Finding:
    """What the shares, and torch's own attention, say about overhead."""
    outside = 1 - found.tree.share("forward")
    agrees = found.stock_difference <= found.tolerance
    stock = (
        "torch's own attention with a mask computes the tree",
        f"logits differ from this library's choice by {difference(found.stock_difference)} (rounding explains "
        f"{tiny(found.tolerance)}); {found.model_class} is unmodified",
    )
    return Finding(
        headline=f"Everything but the forwards takes {percent(outside)} of a tree step "
        f"({percent(1 - found.chain.share('forward'))} of a chain step).",
        says=(
            Check(f"the overhead is large (at least {percent(LARGE)} of a step)", percent(outside), outside >= LARGE),
            Check("trees need a modified kernel", stock[1], not agrees),
        ),
        instead=(
            Check(f"it is less than {percent(LARGE)} of a step", percent(outside), outside < LARGE),
            Check(*stock, agrees),
        ),
        how=f"Seconds of every step by part, as the loop books them, over the texts above; up to "
        f"{found.tree.method.budget} nodes. Overhead is draft, rule, commit and rest. Then one tree through the model "
        "twice, with this library's choice of attention and with torch's scaled_dot_product_attention under a mask.",
        exhibits=(
            _shares("Everything but the forwards", (found.chain, found.tree), ("draft", "verify", "commit", "other")),
        ),
    )


def _shares(title: str, figures: Sequence[Figures], parts: Sequence[str] = PARTS) -> BarChart:
    return BarChart(
        title,
        Axis("share of a step", "%"),
        tuple(NAMES[part] for part in parts),
        tuple((one.method.label, tuple(100 * one.share(part) for part in parts)) for one in figures),
    )


def _milliseconds(figures: Sequence[Figures]) -> Table:
    return Table(
        "Milliseconds per step",
        ("", *(NAMES[part] for part in PARTS), "in all"),
        tuple(
            (
                one.method.label,
                *(f"{1000 * one.seconds[part] / one.steps:.2f}" for part in PARTS),
                f"{1000 * one.total_seconds / one.steps:.2f}",
            )
            for one in figures
        ),
    )
