"""The rules by name, and which one a request gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
        needs_chain: it judges drafts without branches only (`best_path`: one sampled chain, or rollouts from the root).
        lossless: False for a rule that changes the law.
    """

    make: Callable[[], Rule]
    summary: str
    needs_greedy: bool = False
    needs_sampled: bool = False
    needs_chain: bool = False
    lossless: bool = True


RULES: dict[str, RuleEntry] = {
    "greedy": RuleEntry(Greedy, "follows the target's best token; temperature 0 only", needs_greedy=True),
    "match": RuleEntry(Match, "draws from the target and keeps what the draft guessed; any tree of distinct siblings"),
    "multiround": RuleEntry(MultiRound, "rejection over rounds, duplicates kept; any tree that carries its proposals"),
    "rejection": RuleEntry(Rejection, "recursive rejection from the root down; any tree that carries its proposals"),
    "traversal": RuleEntry(Traversal, "judges whole paths from the leaves up; any tree that carries its proposals"),
    "block": RuleEntry(Block, "judges prefixes of one chain jointly; chains only", needs_chain=True),
    "best_path": RuleEntry(
        BestPath,
        "block verification of the best of K <= 4 independent rollouts",
        needs_sampled=True,
        needs_chain=True,
    ),
    "typical": RuleEntry(Typical, "LOSSY: keeps what the target finds plausible; changes the law", lossless=False),
}


def is_lossless(rule: Rule) -> bool:
    """Whether the rule keeps the target's law, as far as is known: False for the registered ones that do not."""
    return all(entry.lossless for entry in RULES.values() if type(rule) is entry.make)


@dataclass(frozen=True)
class DraftKind:
    """What is known about a drafter's trees before the first one.

    Attributes:
        drafter: its name, for messages.
        deterministic: whether every child is picked without chance.
        shape: ``"tree"``, ``"chain"`` (no node has two children) or ``"rollouts"`` (independent chains from the root).
    """

    drafter: str = "the drafter"
    deterministic: bool = True
    shape: str = "tree"

    @classmethod
    def of(cls, drafter: Any) -> DraftKind:
        """As the drafter itself says."""
        return cls(drafter.name, getattr(drafter, "is_deterministic", True), getattr(drafter, "shape", "tree"))


def check_rule(rule: str | Rule) -> None:
    """Raises ValueError for a name that no rule has, and for what cannot be a rule; says what there is."""
    if isinstance(rule, str):
        if rule != "auto" and rule not in RULES:
            raise ValueError(f"no rule is called {rule!r}; there are: auto, {', '.join(RULES)}")
    elif isinstance(rule, type) or not hasattr(rule, "accept"):
        raise ValueError(
            f"a rule is a name (auto, {', '.join(RULES)}) or an object with accept(draft, law, coins), got {rule!r}"
        )


def resolve_rule(name: str | Rule, sampler: Sampler, kind: DraftKind | None = None, seeded: bool = False) -> Rule:
    """The rule for a request.

    Args:
        name: a registered name, ``"auto"``, or a rule object: one of a registered class must fit like its name, any
            other is returned as it is.
        sampler: the request's sampling settings.
        kind: what the drafter drafts; trees without chance when None.
        seeded: whether the user gave a seed; ``auto`` then takes ``match``, whose tokens depend on the seed alone.

    Raises:
        ValueError: no rule has that name, or it does not fit the sampling mode or the drafter. Names both.
    """
    check_rule(name)
    kind = kind or DraftKind()
    if not isinstance(name, str):
        known = next((key for key, entry in RULES.items() if type(name) is entry.make), None)
        if known is not None:
            _check_fit(known, sampler, kind)
        return name
    if name == "auto":
        sampling = "match" if kind.deterministic or seeded else "traversal"
        name = sampling if sampler.do_sample else "greedy"
    _check_fit(name, sampler, kind)
    return RULES[name].make()


def _check_fit(name: str, sampler: Sampler, kind: DraftKind) -> None:
    entry = RULES[name]
    if entry.needs_greedy and sampler.do_sample:
        raise ValueError(
            f"rule {name!r} does not fit do_sample=True: it would write the most probable token instead of a sample; "
            "use rule 'match' (or 'auto'), or set do_sample=False"
        )
    if entry.needs_sampled and kind.deterministic:
        raise ValueError(
            f"rule {name!r} does not fit drafter {kind.drafter!r}, which picks its tokens without chance: the rule "
            "judges sampled rollouts; use rule 'match' (or 'auto'), or a drafter that samples"
        )
    fitting = ("chain", "rollouts") if entry.needs_sampled else ("chain",)
    if entry.needs_chain and kind.shape not in fitting:
        raise ValueError(
            f"rule {name!r} does not fit drafter {kind.drafter!r}, which drafts a {kind.shape}: the rule judges "
            f"{' or '.join(fitting)} drafts only; use rule 'traversal' (or 'auto'), or a drafter that drafts chains"
        )
