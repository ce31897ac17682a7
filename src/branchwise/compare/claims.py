"""What is said about tree attention, and which way each claim is expected to fall. Data; nothing is measured here.

The claims circulate in glossaries and tables that set "standard" causal attention against tree attention. They are
given in this project's words.
"""

from __future__ import annotations

from dataclasses import dataclass

from .verdicts import Verdict


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        key: short name, stable, for links and programs.
        topic: heading.
        said: what is claimed.
        expected: how it should fall.
        instead: what is expected to be found.
    """

    key: str
    topic: str
    said: str
    expected: Verdict
    instead: str


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "inputs",
        "What goes in",
        "Standard attention takes a line of tokens. Tree attention takes a tree, that is several continuations for one "
        "position; some say any directed graph without cycles.",
        "confirmed",
        "Attention computes all three. A node of a graph has several histories, though, so it has no single law: only "
        "a tree can be verified.",
    ),
    Claim(
        "parallel",
        "Tokens verified per forward",
        "Standard attention verifies nothing in parallel; tree attention verifies whole branches in one forward.",
        "corrected",
        "Standard attention verifies a whole chain of drafted tokens in one forward, too. What the tree adds is "
        "branches.",
    ),
    Claim(
        "standard_mask",
        "The standard mask",
        "The mask of standard attention is strictly causal: upper-triangular.",
        "corrected",
        "It is causal, but what is visible is the lower triangle, and the diagonal belongs to it: a token sees itself.",
    ),
    Claim(
        "tree_mask",
        "The tree mask",
        "The tree mask lets tokens attend within their branch and across branches at the same depth.",
        "refuted",
        "A node sees its ancestors and itself. If it saw others at its depth, its logits would depend on guesses that "
        "are not its past.",
    ),
    Claim(
        "siblings",
        "Siblings",
        "No token attends to a sibling branch; all of its ancestors and itself are visible to it.",
        "confirmed",
        "A sibling's token can be exchanged for another, and the logits of every node outside its branch stay as they "
        "were.",
    ),
    Claim(
        "cost",
        "Cost of a forward",
        "The cost grows with the number of nodes, not with the number of branches.",
        "confirmed",
        "So it does, above the flat region in which reading the weights takes longer than multiplying with them. "
        "Branches that share a beginning share its nodes, which verifying them as a batch does not.",
    ),
    Claim(
        "steps",
        "Sequential steps",
        "Verifying k candidates of length depth takes about depth x log(branches) effective steps.",
        "refuted",
        "It takes one forward, whatever the depth and however many branches, and gives at most depth + 1 tokens.",
    ),
    Claim(
        "bound",
        "Greatest speed-up",
        "The speed-up is at best as many-fold as the tree is deep; how much of it comes depends on acceptance.",
        "corrected",
        "A forward gives at best depth + 1 tokens: the accepted ones and one more from the target. From the speed-up "
        "goes the price of drafting and of the wider forward.",
    ),
    Claim(
        "cache",
        "Keys and values",
        "The cache must index branches; it grows with width and depth, and what siblings share is stored once.",
        "confirmed",
        "During a step. After the commit only the accepted path is left, a plain line without any index.",
    ),
    Claim(
        "reuse",
        "Reuse of the draft's work",
        "The keys and values that the draft computed are reused by the target (elsewhere: are recomputed).",
        "corrected",
        "Reuse exists only where the drafter is the target's own first layers. Any other drafter has other keys, or "
        "none.",
    ),
    Claim(
        "logits",
        "Logits that come out",
        "Logits come out for every node of the tree (elsewhere: for its leaves).",
        "confirmed",
        "For every node. Without those of inner nodes a walk could not stop there and still have its next token.",
    ),
    Claim(
        "best_branch",
        "The accepted branch",
        "The tokens along the most probable valid branch are accepted, up to the first rejection.",
        "corrected",
        "Accepted tokens do lie on one branch. To choose it by probability and then judge it as if it had not been "
        "chosen changes the law of the text; rules that account for the choice, or make none, do not.",
    ),
    Claim(
        "coupling",
        "Draft and target",
        "With standard attention draft and target run apart; tree attention couples them tightly.",
        "corrected",
        "Coupling is a matter of the drafter. One and the same drafter drafts chains and trees, in the same four parts "
        "of a step, and sees nothing of the target but tokens.",
    ),
    Claim(
        "overhead",
        "Overhead",
        "The overhead is large: kernels have to be modified, and there are tree structures to keep.",
        "refuted",
        "Everything but the forwards is a small part of a step, and the attention that ships with torch computes trees "
        "when it is given a mask.",
    ),
)
