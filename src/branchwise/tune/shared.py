"""One node budget per step, shared by all requests: nodes go where they are most likely to be accepted.

Every drafted node has an expected gain: the probability that it is accepted. A request that drafts well has many nodes
of a high gain, one that drafts badly has none. The gains of all trees are put in one falling order and taken as long as
they raise the expected tokens per second of the step,

    (lanes + sum of the gains taken) / seconds(lanes + nodes taken),

with the seconds from the `CostCurve`. Few lanes leave room for large trees; with many lanes every node costs its
arithmetic, and what remains is lone roots: plain decoding. Gains fall along each path, so a taken node's ancestors are
taken, too.

Which nodes are taken never depends on the coins of the verifier, and trees with sampled nodes are not cut after they
were drawn (dropping a sampled child would bias the rules that use its probability): for those the share is fixed
beforehand, from what nodes of the same rank gave in earlier steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .budget import BudgetPolicy, make_budget
from .cost_curve import CostCurve

if TYPE_CHECKING:
    from ..decode.statistics import StepSeconds

#: weight of earlier steps in what is learned about a lane or a rank
MEMORY = 0.9
#: a lane that nothing is known about counts as having had so much expected and accepted
PRIOR = 4.0
#: acceptance of the best node before anything is learned, and how it falls from one rank to the next
FIRST_WORTH, WORTH_FALL = 0.6, 0.85
#: a drafter that tells no scores: how likely a node is, by depth, before the lane's own record corrects it
UNSCORED = 0.5
#: steps of lone roots before any trees, and later one of so many steps: what plain decoding costs now
PLAIN_FIRST, PLAIN_EVERY = 2, 64
#: after a step in which no node paid, drafting is tried again after so many steps
REST = 12


class SharedBudget:
    """Divides one budget per step among lanes.

    Args:
        largest: most nodes of one tree, root included.
        step_nodes: most nodes of all trees of a step together; at least every lane's root.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(self, largest: int = 33, step_nodes: int = 512) -> None:
        for name, value in (("largest", largest), ("step_nodes", step_nodes)):
            if value < 1:
                raise ValueError(f"{name} counts nodes, roots included: it must be >= 1, got {value}")
        self.largest = largest
        self.step_nodes = step_nodes
        self.curve = CostCurve()
        self._expected: dict[int, float] = {}
        self._accepted: dict[int, float] = {}
        self._worth = [FIRST_WORTH * WORTH_FALL**rank for rank in range(largest - 1)]
        self._trims = True
        self._rest = 0
        self._step = 0

    def ceilings(self, lanes: Sequence[int]) -> list[int]:
        """Before drafting: the most nodes each lane's tree may have, root included."""
        self._step += 1
        if self._is_plain_step(len(lanes)):
            return [1] * len(lanes)
        gains = [
            (self._rate(lane) * worth, at, rank)
            for at, lane in enumerate(lanes)
            for rank, worth in enumerate(self._falling_worth())
        ]
        shares = [1] * len(lanes)
        for _, at, _ in self._taken(gains, len(lanes)):
            shares[at] += 1
        if not self._trims:
            return shares
        # more than the share, so that the scores have something to choose from; the rest is cut
        return [min(self.largest, 2 * share + 3) for share in shares]

    def divide(self, lanes: Sequence[int], drafts: Sequence[DraftTree]) -> list[DraftTree]:
        """After drafting: each tree without the nodes that do not pay."""
        drafted = [draft for draft in drafts if len(draft.tree) > 1]
        if not drafted:
            return list(drafts)
        self._trims = all(draft.is_deterministic for draft in drafted)
        if not self._trims:
            return list(drafts)
        gains = [
            (self._rate(lane) * gain, at, node)
            for at, (lane, draft) in enumerate(zip(lanes, drafts, strict=True))
            for node, gain in enumerate(_path_scores(draft), start=1)
        ]
        taken: list[list[int]] = [[0] for _ in lanes]
        for _, at, node in self._taken(gains, len(lanes)):
            taken[at].append(node)
        if all(len(nodes) == 1 for nodes in taken):
            self._rest = REST
        return [_only(draft, sorted(nodes)) for draft, nodes in zip(drafts, taken, strict=True)]

    def learn_shares(
        self, lanes: Sequence[int], drafts: Sequence[DraftTree], paths: Sequence[Sequence[int]], seconds: StepSeconds
    ) -> None:
        """What the step's trees gave (accepted paths, root first) and cost."""
        # drafting is paid before anything is chosen
        self.curve.learn(sum(len(draft.tree) for draft in drafts), seconds.total - seconds.draft)
        seen, kept = [0] * len(self._worth), [0] * len(self._worth)
        for lane, draft, path in zip(lanes, drafts, paths, strict=True):
            if len(draft.tree) == 1:
                continue
            expected = sum(_path_scores(draft))
            self._expected[lane] = MEMORY * self._expected.get(lane, PRIOR) + expected
            self._accepted[lane] = MEMORY * self._accepted.get(lane, PRIOR) + len(path) - 1
            for rank in range(min(len(draft.tree) - 1, len(seen))):
                seen[rank] += 1
            for node in path[1:]:
                kept[node - 1] += 1
        for rank, count in enumerate(seen):
            if count:
                old = MEMORY**count
                self._worth[rank] = old * self._worth[rank] + (1 - old) * kept[rank] / count

    def forget(self, lane: int) -> None:
        """The lane has left."""
        self._expected.pop(lane, None)
        self._accepted.pop(lane, None)

    def _is_plain_step(self, lanes: int) -> bool:
        if self._rest:
            self._rest -= 1
            return True
        return self.curve.knows(lanes) < PLAIN_FIRST or self._step % PLAIN_EVERY == 0

    def _rate(self, lane: int) -> float:
        """How many of the lane's expected nodes were really accepted."""
        return self._accepted.get(lane, PRIOR) / self._expected.get(lane, PRIOR)

    def _falling_worth(self) -> Iterator[float]:
        lowest = 1.0
        for worth in self._worth:
            lowest = min(lowest, worth)
            yield lowest

    def _taken(self, gains: list[tuple[float, int, int]], lanes: int) -> list[tuple[float, int, int]]:
        """The best ``(gain, lane's index, node)``, as many as give the step most tokens per second."""
        # of two equal gains the earlier node goes first: an ancestor before its descendants
        gains.sort(key=lambda item: (-item[0], item[2]))
        gains = gains[: max(0, self.step_nodes - lanes)]
        tokens, best, count = float(lanes), lanes / self.curve.seconds(lanes), 0
        for taken, (gain, _, _) in enumerate(gains, start=1):
            tokens += min(gain, 1.0)
            rate = tokens / self.curve.seconds(lanes + taken)
            if gain > 0 and rate > best:
                best, count = rate, taken
        return gains[:count]


def make_shared(spec: int | str | BudgetPolicy | SharedBudget) -> BudgetPolicy | SharedBudget:
    """As `make_budget`, for many requests at once: ``"auto"`` shares one budget."""
    if isinstance(spec, SharedBudget):
        return spec
    return SharedBudget() if spec == "auto" else make_budget(spec)


def _path_scores(draft: DraftTree) -> list[float]:
    """Probability of every drafted node to be accepted, as the drafter sees it; never above its parent's."""
    tree = draft.tree
    scores = [1.0]
    for node in range(1, len(tree)):
        own = draft.scores[node - 1] if draft.scores else UNSCORED ** tree.depth[node]
        scores.append(min(own, scores[tree.parents[node]]))
    return scores[1:]


def _only(draft: DraftTree, nodes: Sequence[int]) -> DraftTree:
    """The draft's ``nodes`` (increasing, root first, closed under parents)."""
    if len(nodes) == len(draft.tree):
        return draft
    number = {node: new for new, node in enumerate(nodes)}
    tree = TokenTree(
        [draft.tree.tokens[node] for node in nodes], [-1, *(number[draft.tree.parents[node]] for node in nodes[1:])]
    )
    sources = [draft.sources[node - 1] for node in nodes[1:]] if draft.sources else ()
    scores = [draft.scores[node - 1] for node in nodes[1:]] if draft.scores else ()
    return DraftTree.deterministic(tree, sources, scores)
