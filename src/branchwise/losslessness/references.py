"""Lossless rules that branchwise does not ship, for comparison. They work on the kit's own vectors (`Plain`) only."""

from __future__ import annotations

from typing import Any

from ..verify import Coins, DraftTree, Law, Sampled, Verdict
from .plain import Plain


def k_seq(draft: DraftTree, law: Law, coins: Coins) -> Verdict:
    """SpecTr's K-SEQ with rho = k, for children drawn independently (Sun et al. 2023, algorithm 3)."""
    path = [0]
    while True:
        target: Any = law(path[-1])
        children = draft.tree.children(path[-1])
        if not children:
            return Verdict(tuple(path), coins.choice(target))
        proposal = draft.proposal(children[0])
        assert isinstance(proposal, Sampled)
        drawn_from: Any = proposal.vector
        k = len(children)
        shares = [min(q, p / k) for p, q in zip(target.values, drawn_from.values, strict=True)]
        beta = sum(shares)  # chance that one child is accepted
        for child in children:
            token = draft.tree.tokens[child]
            if coins.bernoulli(target.at(token) / (k * drawn_from.at(token))):
                path.append(child)
                break
        else:
            accepted = 1 - (1 - beta) ** k  # chance that any is
            factor = accepted / beta if beta else 0
            rest = Plain([p - share * factor for p, share in zip(target.values, shares, strict=True)])
            # in this kit coins choose from fractions, not from tensors
            return Verdict(tuple(path), coins.choice(rest))  # type: ignore[arg-type]


def cumulative_coin(draft: DraftTree, law: Law, coins: Coins) -> Verdict:
    """SGLang's target-only walk: one coin per parent picks the first child whose cumulative law covers it."""
    path = [0]
    while True:
        target: Any = law(path[-1])
        children = draft.tree.children(path[-1])
        chances = [target.at(draft.tree.tokens[child]) for child in children]
        # in this kit coins choose from fractions, not from tensors
        place = coins.choice(Plain([*chances, 1 - sum(chances)]))  # type: ignore[arg-type]
        if place == len(children):
            for child in children:
                target, _ = target.without(draft.tree.tokens[child])
            return Verdict(tuple(path), coins.choice(target))
        path.append(children[place])
