"""Drawing the children of a plan, round by round, each from a law that is known only once its parent was run.

Knows slots, laws and coins. Does not know which model gives the laws, nor why the slots are where they are (that is
`sample_plan`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..tree import TokenTree
from ..verify.coins import SeededCoins
from ..verify.draw import masked, sample_children
from ..verify.proposal import ONE_HOT, DraftTree, Proposal
from ..verify.sampler import Sampler
from .best_first import Path
from .sample_plan import Slot


class SampledGrowth:
    """One lane's plan while it is carried out.

    Args:
        slots: the plan.
        coins: the lane's coins for drafting, or None to take the likeliest tokens instead of draws: where the target
            takes its best token whatever the coins say, a draw would only hit it less often.

    Attributes:
        frontier: value and path of the nodes whose laws are wanted next.
    """

    def __init__(self, slots: Sequence[Slot], coins: SeededCoins | None) -> None:
        self._slots = slots
        self._coins = coins
        self._children: list[list[int]] = [[] for _ in slots]
        self._paths: dict[int, Path] = {0: ()}
        self._proposals: dict[int, Proposal] = {}
        for number, slot in enumerate(slots[1:], start=1):
            self._children[slot.parent].append(number)
            if slot.token is not None:
                self._put(number, slot.token, ONE_HOT)
        self._open([number for number in self._paths if slots[number].draws])

    def _put(self, number: int, token: int, proposal: Proposal) -> None:
        self._paths[number] = (*self._paths[self._slots[number].parent], token)
        self._proposals[number] = proposal

    def _open(self, numbers: list[int]) -> None:
        self._running = numbers
        self.frontier = [(self._slots[number].value, self._paths[number]) for number in numbers]

    def take(self, laws: Sequence[Tensor | None]) -> None:
        """Draws the children of the frontier; the next frontier are those of them that have children of their own.

        Args:
            laws: ``[V]`` per frontier node, in order; None where nothing can follow.
        """
        drawn: list[int] = []
        for number, law in zip(self._running, laws, strict=True):
            below = self._children[number]
            taken = [self._paths[child][-1] for child in below if self._slots[child].token is not None]
            if law is not None and taken:
                law = masked(law, taken)
            if law is None:
                continue
            wanted = [child for child in below if self._slots[child].token is None]
            tokens, proposal = self._drawn(law, len(wanted))
            # a support with fewer tokens than draws leaves slots empty
            for child, token in zip(wanted, tokens, strict=False):
                self._put(child, token, proposal)
                drawn.append(child)
        self._open([number for number in drawn if self._slots[number].draws])

    def _drawn(self, law: Tensor, count: int) -> tuple[Sequence[int], Proposal]:
        if self._coins is not None:
            return sample_children(law, count, self._coins)
        best = law.topk(min(count, len(law)))
        return best.indices[best.values > 0].tolist(), ONE_HOT

    def tree(self, root: int, source: str) -> DraftTree:
        """The filled slots as a draft, in the plan's order."""
        tokens, parents, node_of = [root], [-1], {0: 0}
        filled = [number for number in range(1, len(self._slots)) if number in self._paths]
        for number in filled:
            node_of[number] = len(tokens)
            tokens.append(self._paths[number][-1])
            parents.append(node_of[self._slots[number].parent])
        return DraftTree(
            TokenTree(tokens, parents),
            tuple(self._proposals[number] for number in filled),
            tuple(self._slots[number].source or source for number in filled),
            tuple(self._slots[number].value for number in filled),
        )


def draft_law(logits: Tensor, vocab_size: int, sampler: Sampler | None, legal: Tensor | None) -> Tensor | None:
    """The law a drafter draws from: its own, as far as the request's settings can be put on it.

    Temperature and truncation (top-k, top-p, min-p, typical-p) are applied as they are to the target's law, and what a
    grammar or a ban forbids is left out first. Penalties and user processors, which look at the prefix, are not: the
    draft is less like the target's law then, and no less exact, since what is drawn from is what the rule is told.

    Args:
        logits: ``[V']`` of the drafter; ids past ``vocab_size`` get no probability, ids past V' neither.
        vocab_size: V of the target.
        sampler: the request's settings, or None.
        legal: bool ``[V]``, or None when everything is.

    Returns:
        ``[V]``, or None when nothing can be drawn (nothing is legal, or the logits hold NaN).
    """
    scores = logits[:vocab_size]
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if len(scores) < vocab_size:
        scores = torch.nn.functional.pad(scores, (0, vocab_size - len(scores)), value=-torch.inf)
    if legal is not None:
        scores = scores.masked_fill(~legal.to(scores.device), -torch.inf)
    if sampler is not None and sampler.do_sample:
        for stage in sampler.stages:
            if stage.fast is not None:
                scores = stage.fast(scores)
    law = torch.softmax(scores, 0)
    return None if bool(law[0].isnan()) else law
