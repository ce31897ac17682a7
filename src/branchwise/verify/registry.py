"""The rules by name, and which one a request gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .best_path import BestPath
from .block import Block
from .greedy import Greedy
from .match import Match
from .multiround import MultiRound
from .rejection import Rejection
from .rule import Rule
from .sampler import Sampler
from .traversal import Traversal
from .typical import Typical


@dataclass(frozen=True)
class RuleEntry:
    """What is known about a rule before any draft is seen.

    Attributes:
        make: makes the rule.
        summary: one line for help texts.
        needs_greedy: it is exact only when the law puts all mass on one token (``do_sample`` False).
        needs_sampled: it makes no sense on children that were picked without chance.
        lossless: False for a rule that changes the law.
    """

    make: Callable[[], Rule]
    summary: str
    needs_greedy: bool = False
    needs_sampled: bool = False
    lossless: bool = True


RULES: dict[str, RuleEntry] = {
    "greedy": RuleEntry(Greedy, "follows the target's best token; temperature 0 only", needs_greedy=True),
    "match": RuleEntry(Match, "draws from the target and keeps what the draft guessed; any tree of distinct siblings"),
    "multiround": RuleEntry(MultiRound, "rejection over rounds, duplicates kept; any tree that carries its proposals"),
    "rejection": RuleEntry(Rejection, "recursive rejection from the root down; any tree that carries its proposals"),
    "traversal": RuleEntry(Traversal, "judges whole paths from the leaves up; any tree that carries its proposals"),
    "block": RuleEntry(Block, "judges prefixes of one chain jointly; chains only"),
    "best_path": RuleEntry(
        BestPath, "block verification of the best of K <= 4 independent rollouts", needs_sampled=True
    ),
    "typical": RuleEntry(Typical, "LOSSY: keeps what the target finds plausible; changes the law", lossless=False),
}


def resolve_rule(name: str | Rule, sampler: Sampler, deterministic: bool = True, seeded: bool = False) -> Rule:
    """The rule for a request.

    Args:
        name: a registered name, ``"auto"``, or a rule object, which is returned as it is.
        sampler: the request's sampling settings.
        deterministic: whether the drafter picks every child without chance.
        seeded: whether the user gave a seed; ``auto`` then takes ``match``, whose tokens depend on the seed alone.

    Raises:
        ValueError: no rule has that name, or it does not fit the sampling mode or the drafter.
    """
    if not isinstance(name, str):
        return name
    if name == "auto":
        sampling = "match" if deterministic or seeded else "traversal"
        name = sampling if sampler.do_sample else "greedy"
    entry = RULES.get(name)
    if entry is None:
        raise ValueError(f"no rule is called {name!r}; there are: auto, {', '.join(RULES)}")
    if entry.needs_greedy and sampler.do_sample:
        raise ValueError(
            f"rule {name!r} does not fit do_sample=True: it would write the most probable token instead of a sample; "
            "use rule 'match' (or 'auto'), or set do_sample=False"
        )
    if entry.needs_sampled and deterministic:
        raise ValueError(
            f"rule {name!r} does not fit a drafter that picks its tokens without chance: it judges sampled rollouts; "
            "use rule 'match' (or 'auto'), or a drafter that samples"
        )
    return entry.make()
