"""Negative controls: mistakes that have been made with speculation on trees, each biased by a known distance.

A kit that calls them lossless proves nothing. Broken drafts claim a law that their children were not drawn from; broken
rules misuse a true one. All work on the kit's own vectors (`Plain`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..verify import BestPath, Coins, DraftTree, Law, MultiRound, Rejection, Traversal, Verdict
from ..verify.rounds import Round, rounds
from ..verify.traversal import Branch
from ..verify.vectors import lift
from .drafts import (
    BINARY,
    Children,
    Kind,
    Shape,
    as_sampled,
    draw_with_replacement,
    draw_without_replacement,
    kary,
    top_tokens,
    with_replacement,
    without_replacement,
)
from .plain import Plain
from .toys import ToyPair

TWO_CHAINS = kary(2, 1)
ONE_CHILD = kary(1)


@dataclass(frozen=True)
class Control:
    """One mistake.

    Attributes:
        name: what is done wrong.
        make: makes the rule it is done with.
        kind: the draft it is done on.
        shape: its shape.
        distance: the total variation it is known to have, as printed.
        tokens: its tokens per step as printed, or empty.
        pairs: toy models, or None for the eight printed ones.
    """

    name: str
    make: Callable[[], Any]
    kind: Kind
    shape: Shape
    distance: str
    tokens: str = ""
    pairs: tuple[ToyPair, ...] | None = None


# ------------------------------------------------------------------------------------------------- broken drafts


def merged_copies(law: Any, k: int, coins: Coins) -> Children:
    """Drawn with replacement, copies merged, and still claimed to be with replacement."""
    return as_sampled(list(dict.fromkeys(draw_with_replacement(law, k, coins))), law, replacement=True)


def forgotten_removal(law: Any, k: int, coins: Coins) -> Children:
    """Drawn without replacement, claimed to be with."""
    return as_sampled(draw_without_replacement(law, k, coins), law, replacement=True)


def top_k_as_sampled(law: Any, k: int, coins: Coins) -> Children:
    """The k best tokens, claimed to be sampled."""
    return as_sampled([token for token in top_tokens(law, k) if law.at(token) > 0], law)


def unlikely_dropped(law: Any, k: int, coins: Coins) -> Children:
    """Sampled children below a draft probability of 1/3 are dropped."""
    return as_sampled([token for token in draw_without_replacement(law, k, coins) if 3 * law.at(token) >= 1], law)


def best_kept(law: Any, k: int, coins: Coins) -> Children:
    """Of k sampled children the most probable is kept."""
    return reordered(law, k, coins)[:1]


def reordered(law: Any, k: int, coins: Coins) -> Children:
    """Sampled children in order of probability instead of draw order."""
    return as_sampled(sorted(draw_without_replacement(law, k, coins), key=lambda token: (-law.at(token), token)), law)


def truncated_unsaid(law: Any, k: int, coins: Coins) -> Children:
    """Drawn from the two best tokens, claimed to be drawn from all."""
    kept = set(top_tokens(law, 2))
    narrow = Plain([value if token in kept else 0 for token, value in enumerate(law.values)])
    return as_sampled(draw_with_replacement(narrow, k, coins), law, replacement=True)


def mixed_as_sampled(law: Any, k: int, coins: Coins) -> Children:
    """The best token without chance, then sampled ones, all claimed to be sampled from the full law."""
    first = top_tokens(law, 1)[0]
    rest, _ = lift(law).without(first)
    return as_sampled([first, *draw_without_replacement(rest, k - 1, coins)], law)


# -------------------------------------------------------------------------------------------------- broken rules


class OtherRate(Traversal):
    """Traversal with the parent's rate min(1, A / sum of the draft's law that is left), as one port has it."""

    class OtherBranch(Branch):
        """A branch that updates its rate that way."""

        def lose_child(self) -> None:
            """Takes the child off the law, unless nothing would be left, and sets the rate."""
            assert self.current is not None
            assert self.current.drawn_from is not None
            residual, left = self.current.residual(self.residual, self.reach)
            rest = 1 - self.current.drawn_from.at(self.current.token)
            self.reach = min(1, left / rest) if rest > 0 else 0
            if left > 0:
                self._residual = residual
            self.current = next(self._rounds, None)

    branch = OtherBranch


class UntiltedBestPath(BestPath):
    """The best path, judged with the raw draft law."""

    def choose(self, draft: DraftTree, law: Law) -> tuple[list[int], list[Round]]:
        """As the true rule, but the rounds forget that a choice was made."""
        nodes, games = super().choose(draft, law)
        raw = [next(rounds(draft, parent)).drawn_from for parent in nodes[:-1]]
        return nodes, [Round(game.child, game.token, vector) for game, vector in zip(games, raw, strict=True)]


def longest_of_two(draft: DraftTree, law: Law, coins: Coins) -> Verdict:
    """Chains below the root verified independently of each other; the longest result is kept."""

    def verify(child: int) -> Verdict:
        path = [0]
        ahead: tuple[int, ...] = (child,)
        while ahead:
            target = lift(law(path[-1]))
            game = next(one for one in rounds(draft, path[-1]) if one.child == ahead[0])
            if not coins.bernoulli(game.ratio(target)):
                return Verdict(tuple(path), coins.choice(game.residual(target)[0].weights))
            path.append(ahead[0])
            ahead = draft.tree.children(path[-1])
        return Verdict(tuple(path), coins.choice(law(path[-1])))

    return max(map(verify, draft.tree.children(0)), key=lambda verdict: len(verdict.path))


def forbidden_child_skipped(draft: DraftTree, law: Law, coins: Coins) -> Verdict:
    """Rejection that leaves out the round of a child the target forbids, instead of losing it."""
    path = [0]
    while True:
        residual = lift(law(path[-1]))
        for game in rounds(draft, path[-1]):
            if not residual.at(game.token) > 0:
                continue
            if coins.bernoulli(game.ratio(residual)):
                path.append(game.child)
                break
            residual, _ = game.residual(residual)
        else:
            return Verdict(tuple(path), coins.choice(residual.weights))


def _one_law_pair(target: tuple[str, ...], draft: tuple[str, ...]) -> ToyPair:
    """The same two laws at every prefix of up to one token."""
    prefixes = [(), *((token,) for token in range(len(target)))]
    p, q = (Plain(list(map(Fraction, law))) for law in (target, draft))
    return ToyPair(len(target), dict.fromkeys(prefixes, p), dict.fromkeys(prefixes, q))


_FORBIDDEN = _one_law_pair(("0.6", "0.4", "0"), ("0.2", "0.3", "0.5"))

CONTROLS: tuple[Control, ...] = (
    Control("drawn with replacement, copies merged", MultiRound, merged_copies, BINARY, "0.041", "2.164"),
    Control("drawn without replacement, verified as with", MultiRound, forgotten_removal, BINARY, "0.14"),
    Control("top-k claimed to be sampled", Rejection, top_k_as_sampled, BINARY, "0.75"),
    Control("traversal with the rate A / rest of q", OtherRate, without_replacement, BINARY, "0.19", "2.173"),
    Control("two chains verified apart, longest kept", lambda: longest_of_two, with_replacement, TWO_CHAINS, "0.25"),
    Control("sampled children below 1/3 dropped", Rejection, unlikely_dropped, BINARY, "0.24"),
    Control("best of the sampled children kept", Rejection, best_kept, BINARY, "0.49"),
    Control("drawn from a truncated law, verified with the full one", MultiRound, truncated_unsaid, BINARY, "0.14"),
    Control("best path judged with the raw law", UntiltedBestPath, with_replacement, TWO_CHAINS, "0.2"),
    Control("sampled children in order of probability", Rejection, reordered, BINARY, "0.47"),
    Control("sampled children in order of probability", Traversal, reordered, BINARY, "0.47"),
    Control("mixed children all claimed to be sampled", Rejection, mixed_as_sampled, BINARY, "0.75"),
    Control(
        "sampled child dropped where its law is 0", lambda: forbidden_child_skipped, without_replacement, ONE_CHILD,
        "0.1", pairs=(_FORBIDDEN,),
    ),
)  # fmt: skip
