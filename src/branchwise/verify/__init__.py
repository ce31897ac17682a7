"""Laws, coins and the rules that decide which drafted tokens stand. Knows token trees; knows no model and no cache."""

from .coins import SeededCoins, choose
from .greedy import Greedy
from .law import LawMaker, TreeLaw
from .match import Match
from .proposal import ONE_HOT, DraftTree, OneHot, Proposal, Sampled
from .registry import RULES, RuleEntry, resolve_rule
from .rule import Coins, Law, Rule, Verdict
from .sampler import Sampler

__all__ = [
    "Coins", "DraftTree", "Greedy", "Law", "LawMaker", "Match", "ONE_HOT", "OneHot", "Proposal", "RULES", "Rule",
    "RuleEntry", "Sampled", "Sampler", "SeededCoins", "TreeLaw", "Verdict", "choose", "resolve_rule",
]  # fmt: skip
