"""Tokens per step against depth and width, and against the bound depth + 1; and what is left of it as speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..decode import Generation
from ..draft import AdversaryDrafter, NoneDrafter, OracleDrafter, make_drafter
from ..draft.oracle import Future, future_from_sequences
from ..tree import StaticShape
from .exhibits import Axis, LineChart, Series
from .finding import Finding
from .runs import Runs
from .subject import Subject
from .verdicts import Check


@dataclass(frozen=True)
class Right:
    """A drafter that knew the text.

    Attributes:
        most: most tokens of one step.
        tokens_per_step: on average.
        speed_up: tokens per second over those of plain decoding.
    """

    most: int
    tokens_per_step: float
    speed_up: float


@dataclass(frozen=True)
class Bound:
    """What was measured.

    Attributes:
        right: chains that are always right, by depth.
        wrong_tokens_per_step: trees that are always wrong.
        by_width: tokens per step of a real drafter, by width and then by depth.
        tokens: emitted per run.
    """

    right: Mapping[int, Right]
    wrong_tokens_per_step: float
    by_width: Mapping[int, Mapping[int, float]]
    tokens: int


def measure(subject: Subject, runs: Runs, progress: Callable[[str], None]) -> Bound:
    """Runs on the first prompt."""
    effort = subject.effort
    tokens = min(subject.new_tokens(effort.sweep_tokens), len(runs.outputs[0]))
    known = future_from_sequences([[*subject.prompts[0], *runs.outputs[0]]])
    plain = [subject.run(NoneDrafter(), 1, tokens)]
    runs_right = {depth: subject.run(OracleDrafter(known, reach=depth), depth + 1, tokens) for depth in effort.depths}
    plain.append(subject.run(NoneDrafter(), 1, tokens))
    right = {depth: _right(run, plain) for depth, run in runs_right.items()}
    progress("always right, by depth")
    wrong = _wrong(subject, known, max(effort.depths), tokens)
    by_width: dict[int, dict[int, float]] = {}
    for width in effort.widths:
        by_width[width] = {}
        for depth in effort.depths:
            drafter = make_drafter("static", shape=ladder(width, depth))
            by_width[width][depth] = subject.run(drafter, 1 + width * depth, tokens).tokens_per_step
        progress(f"a drafter of width {width}, by depth")
    return Bound(right, wrong.tokens_per_step, by_width, tokens)


def ladder(width: int, depth: int) -> StaticShape:
    """The best path down to ``depth``, with the ``width`` best candidates at every depth of it."""
    return StaticShape([(0,) * level + (rank,) for level in range(depth) for rank in range(width)])


def _right(run: Generation, plain: Sequence[Generation]) -> Right:
    """Against plain decoding before and after, together."""
    rate = sum(len(one.tokens) for one in plain) / sum(one.decode_seconds for one in plain)
    return Right(max(len(record.tokens) for record in run.records), run.tokens_per_step, run.tokens_per_second / rate)


def _wrong(subject: Subject, known: Future, depth: int, tokens: int) -> Generation:
    def avoid(so_far: list[int]) -> list[int]:
        return list(known(so_far)[:1])

    # it is given lists
    return subject.run(AdversaryDrafter(avoid), depth + 1, tokens)  # type: ignore[arg-type]


def finding(found: Bound) -> Finding:
    """What it says about the claim."""
    reached = [depth for depth, entry in found.right.items() if entry.most == depth + 1]
    over = [depth for depth, entry in found.right.items() if entry.most > depth + 1]
    over += [depth for rates in found.by_width.values() for depth, rate in rates.items() if rate > depth + 1]
    deepest = max(found.right)
    best = found.right[deepest]
    short = [depth for depth, entry in found.right.items() if entry.speed_up < depth + 1]
    at_depth = [depth for depth, entry in found.right.items() if entry.most <= depth]
    return Finding(
        headline=f"At depth {deepest} an always-right draft gives up to {best.most} tokens per forward and makes "
        f"decoding {best.speed_up:.1f} times as fast as plain; an always-wrong one gives "
        f"{found.wrong_tokens_per_step:.2f} tokens per forward.",
        says=(
            Check(
                "a forward gives at most as many tokens as the tree is deep",
                f"more at depths {', '.join(map(str, sorted(set(found.right) - set(at_depth)))) or 'none'}",
                len(at_depth) == len(found.right),
            ),
            Check(
                "how much comes depends on acceptance",
                f"{best.tokens_per_step:.2f} tokens per step always right, {found.wrong_tokens_per_step:.2f} always "
                "wrong",
                best.tokens_per_step > 1.5 * found.wrong_tokens_per_step,
            ),
        ),
        instead=(
            Check(
                "a forward gives at most depth + 1 tokens, and reaches that",
                f"reached at {len(reached)} of {len(found.right)} depths, exceeded at {len(over)}",
                len(reached) == len(found.right) and not over,
            ),
            Check(
                "drafting and the wider forward have their price",
                "; ".join(
                    f"depth {depth}: x {entry.speed_up:.2f} of {depth + 1}" for depth, entry in found.right.items()
                ),
                len(short) == len(found.right),
            ),
        ),
        how=f"Greedy, {found.tokens} new tokens after the first prompt per run. Always right: chains read from what "
        "plain decoding wrote. Always wrong: full trees without the right token below the root. In between: n-grams "
        "and recycled tokens in a fixed shape, the best path with the width best candidates at each of its depths. "
        "Speed without prefill, over plain decoding of as many tokens before and after.",
        exhibits=(
            LineChart(
                "Tokens per step against depth",
                Axis("depth of the draft"),
                Axis("tokens per step"),
                (
                    Series("bound: depth + 1", tuple((d, d + 1.0) for d in sorted(found.right)), dashed=True),
                    Series("always right", tuple((d, found.right[d].tokens_per_step) for d in sorted(found.right))),
                    *(
                        Series(f"n-grams, width {width}", tuple(sorted(rates.items())))
                        for width, rates in sorted(found.by_width.items())
                    ),
                ),
            ),
            LineChart(
                "Speed against depth",
                Axis("depth of the draft"),
                Axis("times as fast as plain"),
                (
                    Series("bound: depth + 1", tuple((d, d + 1.0) for d in sorted(found.right)), dashed=True),
                    Series("always right", tuple((d, found.right[d].speed_up) for d in sorted(found.right))),
                ),
            ),
        ),
    )
