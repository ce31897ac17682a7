"""Budget "auto": one node budget per step, shared by all requests; nodes go where they are likely to be accepted.

Every drafted node has an expected gain: the probability that it is accepted, as its drafter says it and `EdgeRecord`
corrects it. The gains of all trees are put in one falling order and taken as long as they raise

    (lanes + sum of the gains taken)  -  rate * seconds(lanes + nodes taken),

with the seconds from the `CostCurve` and the rate of tokens per second that steps have had lately: a node is worth its
time if it brings more than that time brings otherwise. (This is the choice that makes tokens per second over many steps
largest, Dinkelbach 1967; the best rate of each step alone would spend too much on poor steps.) Gains fall along each
path, so a taken node's ancestors are taken, too, and where the chance of a candidate depends on its rank alone the tree
is Sequoia's optimum (`sequoia`). Depth and width come out of the same order.

Whether drafting pays at all, the drafter's own time included, is learned by `CeilingChoice`: with few lanes there is
room for large trees; where trees do not pay, what remains is lone roots: plain decoding.

Which nodes are taken never depends on the coins of the verifier, and trees with sampled nodes are not cut after they
were drawn (dropping a sampled child would bias the rules that use its probability): for those the share is fixed
beforehand, from what nodes of the same rank gave in earlier steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .ceiling import CeilingChoice
from .cost_curve import CostCurve
from .cost_table import Column, CostTable
from .record import EdgeRecord

if TYPE_CHECKING:
    from ..decode.statistics import StepSeconds
    from ..verify.rule import Verdict

#: ceilings to choose from; the largest one is the user's
CEILINGS = (1, 3, 5, 9, 17, 33)
#: without a table every ceiling is visited so often at first, trees uncut, so that costs are known
FIRST_VISITS = 2
#: with one, so many steps are drafted after a plain one, to learn what drafts are worth
FIRST_DRAFTED = 5
#: weight of earlier steps in what is learned about a rank and about the rate
MEMORY = 0.95
#: acceptance of the best node before anything is learned, and how it falls from one rank to the next
FIRST_WORTH, WORTH_FALL = 0.6, 0.85
#: steps at about one context after which what was learned of it is kept
KEPT_AFTER = 64
#: seconds are booked in every one of so many steps, and in one of so many later ones: booking takes time, too
ALL_TIMED, TIMED_EVERY = 64, 4


@dataclass(frozen=True)
class _Cut:
    """What became of one lane's draft.

    Attributes:
        draft: as the drafter made it.
        gains: of its drafted nodes.
        nodes: numbers, in it, of the nodes that were verified; rising, root first.
    """

    draft: DraftTree
    gains: list[float]
    nodes: Sequence[int]

    def within(self, size: int) -> int:
        """How many of the verified nodes a ceiling of ``size`` would have left, root included."""
        return bisect_left(self.nodes, size)

    @cached_property
    def expected(self) -> list[float]:
        """Sums of the gains of the first 1, 2, ... of the verified nodes, the root's being 0."""
        return [*accumulate((self.gains[node - 1] for node in self.nodes[1:]), initial=0.0)]


class SharedBudget:
    """Divides one budget per step among lanes.

    Args:
        largest: most nodes of one tree, root included.
        step_nodes: most nodes of all trees of a step together; at least every lane's root.
        table: what forwards cost here, measured before.
        keep: is given what was learned of a context that the table does not tell of.
        rows_at_once: nodes that one pass of the target over its weights serves, if there is such an edge.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(
        self,
        largest: int = CEILINGS[-1],
        step_nodes: int = 512,
        table: CostTable | None = None,
        keep: Callable[[Column], None] | None = None,
        rows_at_once: int | None = None,
    ) -> None:
        for name, value in (("largest", largest), ("step_nodes", step_nodes)):
            if value < 1:
                raise ValueError(f"{name} counts nodes, roots included: it must be >= 1, got {value}")
        self.largest = largest
        self.step_nodes = step_nodes
        self.curve = CostCurve(table, rows_at_once)
        self._keep = keep
        self._stored = set() if table is None else set(table.contexts)  # contexts that are kept already
        self._drafting = CostCurve()  # seconds of drafting, by the nodes asked for
        ceilings = [*(size for size in CEILINGS if size < largest), largest]
        first = (
            [size for size in ceilings for _ in range(FIRST_VISITS)]
            if table is None
            else [1, *[largest] * FIRST_DRAFTED]
        )
        self._choice = CeilingChoice(ceilings, first, self._step_seconds)
        self._explores = table is None  # what nodes cost: trees stay whole in the first steps
        self._record = EdgeRecord()
        self._worth = [FIRST_WORTH * WORTH_FALL**rank for rank in range(largest - 1)]
        self._trims = True
        self._tokens = self._plain_steps = 0.0  # decayed: tokens per lane, and the time they took in plain steps
        self._chosen = 1
        self._steps = 0
        self._context = 0.0
        self._at_context: dict[int, int] = {}  # steps by rounded context
        self._asked: list[int] = []
        self._has_asked = False  # in the step in progress
        self._cuts: dict[int, _Cut] = {}

    # before the forward

    def ceilings(self, lanes: Sequence[int], context: float = 0.0) -> list[int]:
        """Before drafting: the most nodes each lane's tree may have, root included.

        Args:
            lanes: their numbers.
            context: committed tokens per lane.
        """
        self._context = context
        self._has_asked = True
        self._chosen = self._choice.pick()
        if self._explores and not self._choice.is_beginning:
            self._explores = False
            self._adopt_table()
        most = min(self.step_nodes, 2 * self.largest) if self._explores else self.step_nodes
        size = max(1, min(self._chosen, most // len(lanes)))
        self._asked = [size] * len(lanes)
        if size > 1 and not self._trims and not self._explores:
            self._asked = self._shares(lanes, size)
        return self._asked

    def _shares(self, lanes: Sequence[int], most: int) -> list[int]:
        """For trees that cannot be cut: what nodes of every rank gave before, divided as if they were drafts."""
        gains = [
            (self._record.lane_factor(lane) * worth, at, rank)
            for at, lane in enumerate(lanes)
            for rank, worth in enumerate(self._falling_worth(most - 1))
        ]
        shares = [1] * len(lanes)
        for _, at, _ in self._taken(gains, len(lanes)):
            shares[at] += 1
        # one more than pays: or what is said of higher ranks would never be looked at again
        return [min(most, share + 1) for share in shares]

    def divide(self, lanes: Sequence[int], drafts: Sequence[DraftTree]) -> list[DraftTree]:
        """After drafting: each tree without the nodes that do not pay."""
        self._cuts = {
            lane: _Cut(draft, self._record.gains(lane, draft), range(len(draft.tree)))
            for lane, draft in zip(lanes, drafts, strict=True)
        }
        drafted = [draft for draft in drafts if len(draft.tree) > 1]
        if not drafted:
            return list(drafts)
        self._trims = all(draft.is_deterministic for draft in drafted)
        if not self._trims or self._explores:
            return list(drafts)
        gains = [
            (gain, at, node)
            for at, cut in enumerate(self._cuts.values())
            for node, gain in enumerate(cut.gains, start=1)
        ]
        taken: list[list[int]] = [[0] for _ in lanes]
        for _, at, node in self._taken(gains, len(lanes)):
            taken[at].append(node)
        for (lane, cut), nodes in zip(self._cuts.items(), taken, strict=True):
            self._cuts[lane] = replace(cut, nodes=sorted(nodes))
        return [_only(cut.draft, cut.nodes) for cut in self._cuts.values()]

    def _taken(self, gains: list[tuple[float, int, int]], lanes: int) -> list[tuple[float, int, int]]:
        """The best ``(gain, lane's index, node)``, as many as are worth their time."""
        # of two equal gains the earlier node goes first: an ancestor before its descendants
        gains.sort(key=lambda item: (-item[0], item[2]))
        del gains[max(0, self.step_nodes - lanes) :]
        if not gains:
            return gains
        seconds = self.curve.profile(lanes + len(gains), self._context)[lanes - 1 :]
        speed = self._tokens / self._plain_steps if self._plain_steps else 1.0
        rate = max(1.0, speed) * lanes / (seconds[0] + self.curve.beside(lanes))
        expected = accumulate((gain for gain, _, _ in gains), initial=0.0)
        worth = [tokens - rate * cost for tokens, cost in zip(expected, seconds, strict=True)]
        return gains[: worth.index(max(worth))]

    # after the step

    def learn_shares(
        self,
        lanes: Sequence[int],
        drafts: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        seconds: StepSeconds,
    ) -> None:
        """What the step's trees gave and cost; arguments in the order of the lanes."""
        self._steps += 1
        is_timed = self._steps <= ALL_TIMED or self._steps % TIMED_EVERY == 0
        if is_timed:
            nodes = sum(len(draft.tree) for draft in drafts)
            self.curve.learn(nodes, seconds.total - seconds.draft, self._context, len(lanes))
        self._keep_column()
        if not self._has_asked:
            return  # nobody was to be drafted for: that says nothing about what drafts are worth
        self._has_asked = False
        if is_timed:
            self._drafting.learn(max(1, sum(self._asked)), seconds.draft)
        for lane, draft, verdict in zip(lanes, drafts, verdicts, strict=True):
            cut = self._cuts.get(lane)
            if cut is None or len(cut.draft.tree) == 1:
                continue
            self._record.learn(lane, cut.draft, [cut.nodes[node] for node in verdict.path], verdict.bonus)
            if not self._trims:
                self._learn_worth(len(draft.tree), verdict.path)
        self._learn_ceilings(lanes, verdicts)

    def _learn_worth(self, nodes: int, path: Sequence[int]) -> None:
        for rank in range(min(nodes - 1, len(self._worth))):
            self._worth[rank] = MEMORY * self._worth[rank] + (1 - MEMORY) * (rank + 1 in path)

    def _learn_ceilings(self, lanes: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        """Books what every ceiling up to the one chosen gives in such a step, and how many nodes it has verified."""
        sizes = [size for size in self._choice.candidates if size <= self._chosen]
        told = [
            (self._cuts[lane], verdict) for lane, verdict in zip(lanes, verdicts, strict=True) if lane in self._cuts
        ]
        tokens, nodes = [], []
        for size in sizes:
            tokens.append(len(lanes) + sum(self._given(cut, verdict, size) for cut, verdict in told))
            nodes.append(float(len(lanes) + sum(cut.within(size) - 1 for cut, _ in told)))
        self._choice.learn(tokens, nodes, any(_is_promising(*one) for one in told))
        self._tokens = MEMORY * self._tokens + tokens[-1] / len(lanes)
        plain = self._forward_seconds(len(lanes))
        self._plain_steps = MEMORY * self._plain_steps + self._step_seconds(self._chosen, nodes[-1]) / plain

    def _step_seconds(self, ceiling: int, nodes: float) -> float:
        """A step that drafts under a ceiling and verifies so many nodes."""
        asked = min(ceiling * len(self._asked), max(self.step_nodes, len(self._asked)))
        return self._forward_seconds(nodes) + self._drafting.seconds(max(1, asked))

    def _forward_seconds(self, nodes: float) -> float:
        """A step of all lanes that verifies so many nodes, without drafting."""
        return self.curve.seconds(nodes, self._context) + self.curve.beside(len(self._asked))

    def _given(self, cut: _Cut, verdict: Verdict, size: int) -> float:
        """Accepted nodes below ``size``.

        Where gains are known, their sum: what is to be expected, without the luck of the step.
        """
        if self._trims:
            return cut.expected[cut.within(size) - 1]
        return sum(cut.nodes[node] < size for node in verdict.path[1:])

    def _adopt_table(self) -> None:
        column = self.curve.column(_rounded(self._context))
        if column is not None:
            self.curve.adopt(CostTable((column,)))

    def _keep_column(self) -> None:
        """Once per context of about this length that no stored table tells of: what is known of it is kept."""
        context = _rounded(self._context)
        self._at_context[context] = self._at_context.get(context, 0) + 1
        is_told = any(known / 2 <= context <= 2 * known for known in self._stored)
        if self._keep is None or is_told or self._at_context[context] < KEPT_AFTER:
            return
        self._stored.add(context)
        column = self.curve.column(context)
        if column is not None:
            self._keep(column)

    def forget(self, lane: int) -> None:
        """The lane has left."""
        self._record.forget(lane)

    def _falling_worth(self, most: int) -> Iterator[float]:
        lowest = 1.0
        for worth in self._worth[:most]:
            lowest = min(lowest, worth)
            yield lowest


def _is_promising(cut: _Cut, verdict: Verdict) -> bool:
    """Whether the draft had the right token at its root, verified or not."""
    return len(verdict.path) > 1 or cut.draft.tree.child_with(0, verdict.bonus) is not None


def _rounded(context: float) -> int:
    """To a power of two, 64 at least: contexts that a curve need not tell apart."""
    return max(64, 2 ** round(math.log2(max(1.0, context))))


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
