"""Do two outputs agree, and if not, could rounding alone have done it?

In bfloat16 (rarely in float32) a forward over many nodes rounds differently from a forward over one token. Where the
two best tokens are closer than that difference, either is a correct greedy output. This file finds the first place
where two outputs part and measures both quantities there. It knows a target, not how the outputs were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch import Tensor

from ..target.protocol import Target
from ..tree import TokenTree


@dataclass(frozen=True)
class Divergence:
    """The first place where an output leaves the reference.

    Attributes:
        position: place in the generated tokens, from 0.
        reference_token, token: what stands there; None where that output has ended.
        gap: logit of the best token minus that of the second best, as plain decoding (one token per forward) has them.
        rounding: greatest difference of any logit between plain decoding and forwards of many tokens: the context as
            one prompt, then trees of up to ``nodes`` nodes. No drafter, rule or commit takes part in it.
        nodes: see there.
    """

    position: int
    reference_token: int | None
    token: int | None
    gap: float
    rounding: float
    nodes: int

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding alone explains it."""
        return self.gap <= self.rounding

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "near_tie": self.is_near_tie}


def first_difference(reference: Sequence[int], tokens: Sequence[int]) -> int | None:
    """The first index where the sequences differ (the end of the shorter one included), or None when they are equal."""
    for index, (one, other) in enumerate(zip(reference, tokens, strict=False)):
        if one != other:
            return index
    return None if len(reference) == len(tokens) else min(len(reference), len(tokens))


#: gap and rounding by prompt, common output and nodes
Measured = dict[tuple[tuple[int, ...], tuple[int, ...], int], tuple[float, float]]


def explain_difference(
    target: Target,
    prompt: Sequence[int],
    reference: Sequence[int],
    tokens: Sequence[int],
    nodes: int,
    known: Measured | None = None,
) -> Divergence | None:
    """Measures gap and rounding where ``tokens`` leave ``reference``; None when they do not.

    Args:
        target: the model both outputs came from, with no tree in flight.
        prompt: token ids before both outputs.
        reference: output of plain decoding.
        tokens: the other output.
        nodes: nodes of the wide forward, root included; take the budget that made ``tokens``.
        known: what was measured before, and is from now on: methods often part at the same near-tie.
    """
    position = first_difference(reference, tokens)
    if position is None:
        return None
    known = {} if known is None else known
    place = tuple(prompt), tuple(reference[:position]), nodes
    if place not in known:
        known[place] = _measure(target, *place)
    gap, rounding = known[place]
    here = [x[position] if position < len(x) else None for x in (reference, tokens)]
    return Divergence(position, here[0], here[1], gap, rounding, nodes)


def _measure(target: Target, prompt: Sequence[int], common: Sequence[int], nodes: int) -> tuple[float, float]:
    narrow = _plain_logits(target, prompt, common)
    best = narrow.topk(2).values
    widths = sorted({2, (nodes + 1) // 2, nodes} - {0, 1}) or [1]
    wide = [_wide_logits(target, [*prompt, *common], width, narrow) for width in widths]
    return float(best[0] - best[1]), max(float((logits - narrow).abs().max()) for logits in wide)


def _plain_logits(target: Target, prompt: Sequence[int], common: Sequence[int]) -> Tensor:
    """Logits ``[V]`` after the common output, as plain decoding computed them: one token per forward."""
    lane = target.open(len(prompt) + len(common) + 1, longest=len(prompt) + len(common))
    try:
        target.prefill(lane, prompt)
        for token in (prompt[-1], *common[:-1]) if common else ():
            target.forward({lane: TokenTree.from_chain(token)})
            target.commit({lane: (0,)})
        root = TokenTree.from_chain(common[-1] if common else prompt[-1])
        return target.forward({lane: root})[lane].logits[0].double()
    finally:
        target.rollback()
        target.free(lane)


def _wide_logits(target: Target, prefix: Sequence[int], width: int, narrow: Tensor) -> Tensor:
    """The same logits with everything before them, and themselves, computed in forwards of many tokens."""
    lane = target.open(len(prefix) + width, longest=len(prefix))
    try:
        target.prefill(lane, prefix)
        children = narrow.topk(min(width - 1, narrow.shape[0])).indices.tolist() if width > 1 else []
        if target.depth_limit(lane) == 0:
            children = []
        tree = TokenTree((prefix[-1], *children), (-1, *(0 for _ in children)))
        return target.forward({lane: tree})[lane].logits[0].double()
    finally:
        target.rollback()
        target.free(lane)
