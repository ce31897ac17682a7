"""Laws, coins and the rules that decide which drafted tokens stand. Knows token trees; knows no model and no cache."""

from .best_path import BestPath
from .block import Block
from .coins import SeededCoins, choose
from .draw import draw_with_replacement, draw_without_replacement, masked, sample_children
from .grammar import Grammar
from .grammar_state import CompiledGrammar, GrammarState
from .greedy import Greedy
from .law import LawMaker, TreeLaw
from .match import Match
from .multiround import MultiRound
from .proposal import ONE_HOT, DraftTree, OneHot, Proposal, Sampled
from .registry import RULES, DraftKind, RuleEntry, is_lossless, resolve_rule
from .rejection import Rejection
from .rule import Coins, Law, Rule, Verdict
from .sampler import Sampler
from .traversal import Traversal
from .typical import Typical

__all__ = [
    "BestPath", "Block", "Coins", "CompiledGrammar", "DraftKind", "DraftTree", "Grammar", "GrammarState", "Greedy",
    "Law", "LawMaker", "Match", "MultiRound", "ONE_HOT", "OneHot", "Proposal", "RULES", "Rejection", "Rule",
    "RuleEntry",
    "Sampled", "Sampler", "SeededCoins", "Traversal", "TreeLaw", "Typical", "Verdict", "choose",
    "is_lossless", "draw_with_replacement", "draw_without_replacement", "masked", "resolve_rule", "sample_children",
]  # fmt: skip
