"""Whether the target reuses what the draft computed: its own first layers as drafter in both modes, and n-grams."""

from __future__ import annotations

from dataclasses import dataclass

from ..bench.agreement import explain_difference
from ..decode import Generation
from ..draft import Drafter, EarlyExitDrafter, make_drafter
from ..target.layers import find_layers
from .exhibits import Axis, BarChart, Table
from .finding import Finding
from .phrases import tiny
from .subject import Subject
from .verdicts import Check
from .witness import counting_rows

DEPTH, WIDTH, BUDGET = 3, 2, 7


@dataclass(frozen=True)
class Mode:
    """One run.

    Attributes:
        first_rows: rows that went through the first layer, per step: drafting and verification together.
        verified_nodes: nodes verified, per step.
        draft_ms: drafting, per step.
        forward_ms: verification, per step.
        steps: forwards.
    """

    first_rows: float
    verified_nodes: float
    draft_ms: float
    forward_ms: float
    steps: int


@dataclass(frozen=True)
class Reuse:
    """What was measured.

    Attributes:
        reuse: verification goes on from the draft's keys, values and hidden states.
        recompute: it runs all layers.
        ngrams: a drafter without keys.
        layers: of the model.
        exit_layer: so many of them draft.
        agree: whether both modes wrote the same tokens, or parted at a near-tie.
        agreement: the same in words.
    """

    reuse: Mode
    recompute: Mode
    ngrams: Mode
    layers: int
    exit_layer: int
    agree: bool
    agreement: str


def measure(subject: Subject) -> Reuse:
    """Three runs on the first prompt.

    Raises:
        UnsupportedSplit: the model's layers cannot be run apart.
    """
    target = subject.target
    layers = len(target.windows)
    exit_layer = max(1, layers // 4)
    tokens = subject.new_tokens(subject.effort.reuse_tokens)

    def drafter(mode: str) -> Drafter:
        return EarlyExitDrafter(target, exit_layer=exit_layer, mode=mode, depth=DEPTH, width=WIDTH)

    reuse, one = _run(subject, drafter("reuse"), tokens)
    recompute, other = _run(subject, drafter("recompute"), tokens)
    ngrams, _ = _run(subject, make_drafter("mixed"), tokens)
    agree, agreement = _agreement(subject, one, other)
    return Reuse(reuse, recompute, ngrams, layers, exit_layer, agree, agreement)


def _run(subject: Subject, drafter: Drafter, tokens: int) -> tuple[Mode, Generation]:
    subject.warm_up(drafter, BUDGET)
    first = find_layers(subject.model, len(subject.target.windows)).own[0]
    prompt = len(subject.prompts[0])
    with counting_rows(first) as rows:
        run = subject.run(drafter, BUDGET, tokens)
    steps = run.steps
    return Mode(
        first_rows=(sum(rows) - (prompt - 1)) / steps,
        verified_nodes=sum(len(record.draft.tree) for record in run.records) / steps,
        draft_ms=1000 * sum(step.draft for step in run.seconds) / steps,
        forward_ms=1000 * sum(step.forward for step in run.seconds) / steps,
        steps=steps,
    ), run


def _agreement(subject: Subject, one: Generation, other: Generation) -> tuple[bool, str]:
    if one.tokens == other.tokens:
        return True, f"all {len(one.tokens)} tokens"
    parted = explain_difference(subject.target, subject.prompts[0], other.tokens, one.tokens, BUDGET)
    assert parted is not None
    kind = "a near-tie" if parted.is_near_tie else "no near-tie"
    measured = f"gap {tiny(parted.gap)}, rounding {tiny(parted.rounding)}"
    return parted.is_near_tie, f"{parted.position} tokens, then {kind} ({measured})"


def finding(found: Reuse) -> Finding:
    """What it says about the claim."""
    modes = (("own layers, reuse", found.reuse), ("own layers, recompute", found.recompute), ("n-grams", found.ngrams))
    ratio = found.recompute.forward_ms / found.reuse.forward_ms if found.reuse.forward_ms else 0.0
    saved_by_ngrams = found.ngrams.verified_nodes - found.ngrams.first_rows
    return Finding(
        headline=f"With the target's own first {found.exit_layer} of {found.layers} layers as drafter, verification "
        f"took {found.reuse.forward_ms:.1f} ms per step reusing their work and {found.recompute.forward_ms:.1f} ms "
        "without.",
        says=(
            Check(
                "where the target's own first layers draft, their keys and values are reused",
                f"{found.reuse.first_rows:.1f} rows per step through the first layer with reuse, "
                f"{found.recompute.first_rows:.1f} without, for {found.reuse.verified_nodes:.1f} nodes verified",
                found.reuse.first_rows < found.recompute.first_rows,
            ),
            Check(
                "any draft's keys and values are reused",
                f"n-grams: {saved_by_ngrams:.1f} of {found.ngrams.verified_nodes:.1f} nodes spared the first layer",
                saved_by_ngrams > 0,
            ),
        ),
        instead=(
            Check(
                "other drafters have nothing to reuse",
                f"n-grams: {found.ngrams.first_rows:.1f} rows through the first layer for "
                f"{found.ngrams.verified_nodes:.1f} nodes",
                saved_by_ngrams == 0,
            ),
            Check("both modes write the same text", found.agreement, found.agree),
        ),
        how=f"Greedy, first prompt, trees of {BUDGET} nodes at the most; the first {found.exit_layer} layers draft "
        f"(depth {DEPTH}, width {WIDTH}). Rows through the first layer are counted by a hook, without the prompt. Both "
        "modes draft the same trees. Times per step, drafting and verification apart: with reuse, the part of "
        "verification that drafting has done is not done again.",
        exhibits=(
            BarChart(
                "Time of a step",
                Axis("time per step", "ms"),
                ("drafting", "verification"),
                tuple((name, (mode.draft_ms, mode.forward_ms)) for name, mode in modes),
            ),
            Table(
                "Per step",
                (
                    "drafter",
                    "nodes verified",
                    "rows through the first layer",
                    "drafting",
                    "verification",
                    "times reuse",
                ),
                tuple(
                    (
                        name,
                        f"{mode.verified_nodes:.1f}",
                        f"{mode.first_rows:.1f}",
                        f"{mode.draft_ms:.2f} ms",
                        f"{mode.forward_ms:.2f} ms",
                        f"{ratio:.2f}" if mode is found.recompute else "-",
                    )
                    for name, mode in modes
                ),
            ),
        ),
    )
