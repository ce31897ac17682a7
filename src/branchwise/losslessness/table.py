"""The table of exact results: rules on drafts that they are exact for, and controls that must be found out.

`run_table` is what ``branchwise verify-lossless`` prints. Values under "printed" were computed independently, once, and
are reproduced to their digits; they are there so that a change of meaning anywhere in the rules or the kit shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from ..verify import RULES
from ..verify.vectors import Number
from .check import check_rule
from .controls import CONTROLS, TWO_CHAINS, best_kept, reordered
from .drafts import (
    BINARY,
    CHAIN,
    COMB,
    DEEP,
    EARLY_STOPPED,
    KINDS,
    SHAPES,
    Kind,
    Shape,
    deterministic,
    kary,
    mixed,
    only_best,
    only_where,
    only_worst,
    with_replacement,
    with_replacement_merged,
    without_replacement,
)
from .references import cumulative_coin, k_seq
from .toys import Arithmetic, ToyPair, random_pair, toy_pairs

Expectation = Literal["lossless", "biased", "lossy", "refused"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        rule: name of the rule, or of the mistake.
        draft: how children are drawn.
        shape: how many.
        expectation: what must come out.
        total_variation: largest distance over the pairs; None when the rule refused the draft.
        tokens_per_step: mean over the pairs; None when the rule refused.
        arithmetic: the numbers it ran in.
        vocabulary: number of tokens.
        printed_distance: the known distance, or empty.
        printed_tokens: the known tokens per step, or empty.
    """

    rule: str
    draft: str
    shape: str
    expectation: Expectation
    total_variation: Number | None
    tokens_per_step: Number | None
    arithmetic: Arithmetic = "rational"
    vocabulary: int = 3
    printed_distance: str = ""
    printed_tokens: str = ""

    @property
    def ok(self) -> bool:
        """Whether what was expected came out: 0 exactly (in floats 1e-12), or a control at 80% of its distance."""
        if self.expectation == "refused" or self.total_variation is None:
            return self.expectation == "refused" and self.total_variation is None
        if self.expectation == "lossless":
            return bool(self.total_variation <= (0 if self.arithmetic == "rational" else 1e-12))
        return self.total_variation >= 0.8 * float(self.printed_distance or 0) and self.total_variation > 0

    @property
    def reproduces(self) -> bool:
        """Whether the printed digits came out."""
        return _agrees(self.total_variation, self.printed_distance) and _agrees(
            self.tokens_per_step, self.printed_tokens
        )


def _agrees(value: Number | None, printed: str) -> bool:
    if not printed:
        return True
    digits = len(printed.partition(".")[2])
    return value is not None and float(f"{float(value):.{digits}f}") == float(printed)


@dataclass(frozen=True)
class _Entry:
    rule: str
    make: Callable[[], Any]
    draft: str
    kind: Kind
    shape: Shape
    tokens: str = ""
    pairs: int = 8


def _named(name: str) -> tuple[str, Callable[[], Any]]:
    return name, RULES[name].make


_BEST = only_where(BINARY, "(2,2), only the best sibling expanded", only_best)
_WORST = only_where(BINARY, "(2,2), only the worst sibling expanded", only_worst)
_WITHOUT = ("without replacement", without_replacement)
_WITH = ("with replacement", with_replacement)
_TOP = ("deterministic", deterministic)
_MIXED = ("mixed", mixed)
_MERGED = ("with replacement, copies dropped", with_replacement_merged)

_ENTRIES: tuple[_Entry, ...] = (
    _Entry(*_named("multiround"), *_WITH, BINARY, "2.164"),
    _Entry(*_named("rejection"), *_MERGED, BINARY, "2.1405"),  # first printed as 2.141, rounded twice
    _Entry(*_named("rejection"), *_WITHOUT, BINARY, "2.258"),
    _Entry(*_named("match"), *_WITHOUT, BINARY, "2.078"),
    _Entry(*_named("rejection"), *_TOP, BINARY, "2.219"),
    _Entry(*_named("match"), *_TOP, BINARY, "2.219"),
    _Entry("cumulative coin", lambda: cumulative_coin, *_TOP, BINARY, "2.219"),
    _Entry(*_named("traversal"), *_WITHOUT, BINARY, "2.296"),
    _Entry("K-SEQ", lambda: k_seq, *_WITH, BINARY, "1.91", pairs=6),
    _Entry(*_named("rejection"), *_WITHOUT, EARLY_STOPPED),
    _Entry(*_named("traversal"), *_WITHOUT, EARLY_STOPPED),
    _Entry(*_named("match"), "best of the sampled children kept", best_kept, BINARY),
    _Entry(*_named("block"), *_WITH, kary(1, 1), "2.071"),
    _Entry(*_named("best_path"), *_WITH, TWO_CHAINS, "2.190"),
    _Entry(*_named("traversal"), *_WITH, BINARY, "2.201"),
    _Entry(*_named("traversal"), *_MERGED, BINARY, "2.175"),
    _Entry(*_named("traversal"), *_TOP, BINARY, "2.219"),
    _Entry(*_named("rejection"), *_WITHOUT, _BEST),
    _Entry(*_named("traversal"), *_WITHOUT, _BEST, "2.13"),
    _Entry(*_named("match"), *_WITHOUT, _BEST),
    _Entry(*_named("rejection"), *_WITHOUT, _WORST),
    _Entry(*_named("traversal"), *_WITHOUT, _WORST),
    _Entry(*_named("match"), *_WITHOUT, _WORST, "1.85"),
    _Entry(*_named("match"), "sampled children in order of probability", reordered, BINARY),
    _Entry(*_named("rejection"), *_MIXED, BINARY, "2.202"),
    _Entry(*_named("traversal"), *_MIXED, BINARY, "2.277"),
    _Entry(*_named("match"), *_MIXED, BINARY, "2.090"),
    _Entry(*_named("rejection"), *_WITHOUT, CHAIN, "2.265"),
    _Entry(*_named("block"), *_WITHOUT, CHAIN, "2.359"),
    _Entry(*_named("traversal"), *_WITHOUT, CHAIN, "2.359"),
    _Entry(*_named("multiround"), *_WITH, COMB, "2.359", pairs=6),
    _Entry(*_named("rejection"), *_WITHOUT, COMB, "2.414", pairs=6),
    _Entry(*_named("rejection"), *_TOP, COMB, "2.420", pairs=6),
    _Entry(*_named("traversal"), *_WITHOUT, COMB, "2.537", pairs=6),
    _Entry(*_named("multiround"), *_WITH, DEEP, "2.414", pairs=3),
    _Entry(*_named("rejection"), *_WITHOUT, DEEP, "2.593", pairs=3),
    _Entry(*_named("traversal"), *_WITHOUT, DEEP, "2.728", pairs=3),
)


def run_table(full: bool = False) -> Iterator[Row]:
    """The printed table on the eight pairs, row by row as they are ready; with ``full`` the whole grid after it."""
    for entry in _ENTRIES:
        report = check_rule(entry.make(), entry.kind, entry.shape, toy_pairs()[: entry.pairs])
        yield Row(
            entry.rule, entry.draft, entry.shape.name, "lossless", report.total_variation, report.tokens_per_step,
            printed_distance="0", printed_tokens=entry.tokens,
        )  # fmt: skip
    for control in CONTROLS:
        report = check_rule(control.make(), control.kind, control.shape, control.pairs)
        name = getattr(control.make(), "name", "-")
        yield Row(
            name, control.name, control.shape.name, "biased", report.total_variation, report.tokens_per_step,
            printed_distance=control.distance, printed_tokens=control.tokens,
        )  # fmt: skip
    if full:
        yield from run_grid()


def expectation(rule: str, kind: str, shape: Shape) -> Expectation:
    """What must come out of a shipped rule on a draft of this kind and shape."""
    if not RULES[rule].lossless:
        return "lossy"
    fits = {
        "match": kind != "with replacement" or shape.is_chain,
        "block": shape.is_chain,
        "best_path": shape.rollouts
        and (kind == "with replacement" or (kind == "without replacement" and shape.is_chain)),
    }
    return "lossless" if fits.get(rule, True) else "refused"


def run_grid(
    rules: Sequence[str] = tuple(RULES),
    kinds: Sequence[str] = tuple(KINDS),
    shapes: Sequence[Shape] = SHAPES,
    arithmetics: Sequence[Arithmetic] = ("rational", "tensor"),
    pairs: Sequence[ToyPair] | None = None,
) -> Iterator[Row]:
    """Every rule on every kind and shape of draft. ``greedy`` runs at temperature 0, the others at 1.

    Args:
        rules: names of shipped rules.
        kinds: names of `KINDS`.
        shapes: shapes to draft.
        arithmetics: in which numbers to run.
        pairs: toy models, each run and reported on its own; by default two of three tokens and one of four.
    """
    for pair in (*toy_pairs()[:2], random_pair(1)) if pairs is None else pairs:
        for arithmetic, shape, kind, rule in product(arithmetics, shapes, kinds, rules):
            expected = expectation(rule, kind, shape)
            used = pair.cold() if RULES[rule].needs_greedy else pair
            try:
                report = check_rule(RULES[rule].make(), KINDS[kind], shape, [used], arithmetic)
                found: tuple[Number | None, Number | None] = (report.total_variation, report.tokens_per_step)
            except ValueError:
                found = (None, None)
            yield Row(rule, kind, shape.name, expected, *found, arithmetic, pair.vocabulary)


def render(rows: Iterable[Row]) -> Iterator[str]:
    """The rows as aligned lines of text, a heading first."""
    layout = "{:<16} {:<54} {:<36} {:<9} {:>2} {:>10} {:>8}  {}"
    yield layout.format("rule", "draft", "shape", "numbers", "V", "distance", "tokens", "verdict")
    for row in rows:
        refused = row.total_variation is None
        distance = "refused" if refused else f"{float(row.total_variation or 0):.2g}"
        tokens = "-" if row.tokens_per_step is None else f"{float(row.tokens_per_step):.3f}"
        verdict = f"{row.expectation}{'' if row.ok and row.reproduces else ': FAILED'}"
        yield layout.format(
            row.rule, row.draft, row.shape, row.arithmetic, row.vocabulary, distance, tokens, verdict
        ).rstrip()
