"""Best path: of K independent rollouts judge the most promising, by the law that such a choice has.

Source: a reading of "Greedy multi-path block verification" (arXiv 2602.16961); its law is checked exactly by
`branchwise.losslessness`. All possible rollouts are put into a strict order that depends on target and draft only: at
every prefix, tokens ascend by target over draft, the smaller id first among equals. In that order the rollouts that
start with a prefix s fill an interval [lo, hi) of the draft's probability, so the largest of K draws starts with s with
probability hi^K - lo^K. That is the law the chosen rollout was drawn from, and block verification with this law is
exact. With the raw draft law it would not be: the choice already looked at the rollouts.
"""

from __future__ import annotations

from .block import judge_chain
from .proposal import DraftTree, Sampled
from .rounds import Round, rounds
from .rule import Coins, Law, Verdict
from .vectors import Number, Tilted, lift

MOST_ROLLOUTS = 4


class BestPath:
    """Judges the best of K rollouts of equal length drawn independently from the root.

    Attributes:
        zero_residuals: as in `Block`.
    """

    name = "best_path"
    lossless = True

    def __init__(self) -> None:
        self.zero_residuals = 0

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """Chooses and judges; returns the accepted prefix of the chosen rollout and the bonus token.

        Raises:
            ValueError: the draft is not K <= 4 independent rollouts of one length. Says why.
        """
        nodes, games = self.choose(draft, law)
        kept, bonus, was_zero = judge_chain(nodes, games, law, coins)
        self.zero_residuals += was_zero
        return Verdict(tuple(nodes[: kept + 1]), bonus)

    def choose(self, draft: DraftTree, law: Law) -> tuple[list[int], list[Round]]:
        """The nodes of the most promising rollout, root first, and the round that each of them is judged by."""
        rollouts = require_rollouts(draft)
        k = len(rollouts)
        tokens = draft.tree.tokens
        tilts: list[Tilted] = []
        low: Number = 0
        width: Number = 1
        for depth in range(len(rollouts[0]) if rollouts else 0):
            # rollouts that share the chosen prefix share its laws: the first of them speaks for all
            node = rollouts[0][depth - 1] if depth else 0
            proposal = next(rounds(draft, node)).drawn_from
            assert proposal is not None
            tilt = proposal.tilted(lift(law(node)), low, width, k)
            intervals = {tokens[rollout[depth]]: tilt.interval(tokens[rollout[depth]]) for rollout in rollouts}
            best = max(intervals, key=lambda token: intervals[token][0])
            rollouts = [rollout for rollout in rollouts if tokens[rollout[depth]] == best]
            low, width = intervals[best]
            tilts.append(tilt)
        chain = rollouts[0] if rollouts else ()  # one rollout from end to end, so that the path is one in the tree
        nodes = [0, *chain]
        games = [Round(node, tokens[node], tilt) for node, tilt in zip(chain, tilts, strict=True)]
        return nodes, games


def require_rollouts(draft: DraftTree) -> list[tuple[int, ...]]:
    """The rollouts of a draft as node numbers below the root; raises a ValueError when it is anything else."""
    tree = draft.tree
    remedy = "rule 'best_path' judges K independent rollouts of one length, drawn from the root; use rule 'traversal'"
    for node in range(1, len(tree)):
        proposal = draft.proposal(node)
        if len(tree.children(node)) > 1:
            raise ValueError(f"node {node} has {len(tree.children(node))} children: {remedy}")
        if not isinstance(proposal, Sampled):
            raise ValueError(f"node {node} was picked without chance: {remedy}")
        if tree.parents[node] == 0 and len(tree.children(0)) > 1 and not proposal.replacement:
            raise ValueError(f"node {node} was drawn without replacement: {remedy}")
    rollouts = [tree.path(leaf)[1:] for leaf in tree.leaves if leaf]
    if len(rollouts) > MOST_ROLLOUTS:
        raise ValueError(
            f"the draft holds {len(rollouts)} rollouts; rule 'best_path' takes at most {MOST_ROLLOUTS}: the law of the "
            "best of many is so skewed that its residuals lose their digits; use rule 'traversal'"
        )
    if len({len(rollout) for rollout in rollouts}) > 1:
        raise ValueError(f"the rollouts have lengths {[len(rollout) for rollout in rollouts]}: {remedy}")
    return rollouts
