"""Checking one rule: the exact law of what it writes, against the target's.

for every draft, for every fall of the coins:     emitted tokens, weight
then the target itself goes on up to a fixed length, so that runs of different lengths can be compared
total variation = half the sum of |law written - law of the target| over all sequences of that length
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from ..verify import Coins, DraftTree, Rule, Verdict
from ..verify.vectors import Number, lift
from .drafts import Children, Kind, Shape
from .enumerate import EnumeratingCoins, outcomes
from .growing import GrowingTree, Spot, growing_draft
from .toys import Arithmetic, Prefix, ToyPair, toy_pairs

#: a rule's `accept`, or any callable like it
Accept = Callable[[DraftTree, Callable[[int], Any], Coins], Verdict]


@dataclass(frozen=True)
class Report:
    """What enumeration found.

    Attributes:
        total_variation: the largest distance over the pairs; 0 means lossless (exactly 0 in rationals).
        tokens_per_step: expected emitted tokens, averaged over the pairs.
    """

    total_variation: Number
    tokens_per_step: Number

    def is_lossless(self, tolerance: float = 1e-12) -> bool:
        """Equality in rationals; within ``tolerance`` in floats."""
        if isinstance(self.total_variation, float):
            return self.total_variation <= tolerance
        return bool(self.total_variation == 0)


def check_rule(
    rule: Rule | Accept,
    kind: Kind,
    shape: Shape,
    pairs: Iterable[ToyPair] | None = None,
    arithmetic: Arithmetic = "rational",
) -> Report:
    """Enumerates a rule on toy models: every draft, every coin.

    Args:
        rule: a rule, or a callable ``(draft, law, coins) -> Verdict``. ``law(node)`` and ``Sampled.vector`` are float64
            tensors in arithmetic "tensor", else small vectors (`Plain`) with the methods of `verify.vectors.Vector`.
        kind: how children are drawn; see `KINDS`.
        shape: how many there are; see `SHAPES`.
        pairs: toy models in rationals; the eight printed ones when None.
        arithmetic: "rational", "float" or "tensor".
    """
    accept = cast(Accept, rule.accept if hasattr(rule, "accept") else rule)
    distances, lengths = [], []
    for pair in toy_pairs() if pairs is None else pairs:
        law, emitted = law_written(accept, kind, shape, pair.cast(arithmetic))
        distances.append(distance(law, pair.cast(arithmetic), shape.height + 1))
        lengths.append(emitted)
    return Report(max(distances), sum(lengths) / len(lengths))


def law_written(accept: Accept, kind: Kind, shape: Shape, pair: ToyPair) -> tuple[dict[Prefix, Number], Number]:
    """Weight of every emitted run, and the expected number of its tokens."""

    def play(coins: EnumeratingCoins) -> tuple[int, ...]:
        draft = growing_draft(lambda spot: children(spot, coins))
        tree = cast(GrowingTree, draft.tree)
        verdict = accept(draft, lambda node: pair.target[tree.prefix(node)], coins)
        path = verdict.path
        if path[0] != 0 or any(tree.parents[node] != above for above, node in pairwise(path)):
            raise ValueError(
                f"the rule returned the path {path}, which does not lead from the root from parent to child"
            )
        return (*tree.prefix(verdict.path[-1]), verdict.bonus)

    def children(spot: Spot, coins: EnumeratingCoins) -> Children:
        width = shape.width(spot, lift(pair.draft[spot.prefix[:-1]]).at)
        return kind(pair.draft[spot.prefix], width, coins) if width else []

    written: dict[Prefix, Number] = defaultdict(int)
    for run, weight in outcomes(play):
        written[run] += weight
    return dict(written), sum(weight * len(run) for run, weight in written.items())


def distance(written: dict[Prefix, Number], pair: ToyPair, length: int) -> Number:
    """Total variation from the target's law of ``length`` tokens; shorter runs are continued by the target."""
    difference: dict[Prefix, Number] = defaultdict(int)

    def spread(run: Prefix, weight: Number) -> None:
        if len(run) == length:
            difference[run] += weight
            return
        law = lift(pair.target[run])
        for token in range(pair.vocabulary):
            chance = law.at(token)
            if chance > 0:
                spread((*run, token), weight * chance)

    for run, weight in written.items():
        spread(run, weight)
    spread((), -1)
    return sum(abs(value) for value in difference.values()) / 2
