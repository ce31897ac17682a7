"""Rows of keys and values: written, kept and rolled back per step, and how the cache grows. Counted in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from ..decode.lane import Lane
from ..draft import make_drafter
from ..tree import TokenTree
from ..verify import Greedy
from ..verify.proposal import DraftTree
from ..verify.rule import Coins, Law, Verdict
from .cost import comb
from .exhibits import Axis, BarChart, LineChart, Series, Table
from .finding import Finding
from .phrases import megabytes
from .subject import Subject
from .verdicts import Check

WIDTHS, DEPTHS = (1, 2, 4), (1, 2, 4, 8)
#: branches of 6 tokens, the first 3 of which they share
SHARING = (4, 6, 3)


@dataclass(frozen=True)
class Step:
    """The rows of one layer in one step.

    Attributes:
        written: by the forward.
        kept: of these, by the commit.
        committed: in the cache afterwards.
        expected: tokens of the text whose rows belong there: all but the last.
    """

    written: int
    kept: int
    committed: int
    expected: int

    @property
    def dropped(self) -> int:
        """Rolled back."""
        return self.written - self.kept


@dataclass(frozen=True)
class Rows:
    """What was counted.

    Attributes:
        chain: steps of a run with chains.
        tree: steps of a run with trees.
        budget: nodes of both.
        in_flight: rows in flight after a forward of ``width`` branches of ``depth`` tokens, by width and depth.
        shared: rows in flight of branches with a common beginning.
        apart: tokens of these branches, root included for each.
        row_bytes: keys and values of one row in all layers.
    """

    chain: tuple[Step, ...]
    tree: tuple[Step, ...]
    budget: int
    in_flight: dict[tuple[int, int], int]
    shared: int
    apart: int
    row_bytes: float


@dataclass
class _Ledger:
    """A greedy rule that looks at the cache between forward and commit."""

    subject: Subject
    steps: list[Step] = field(default_factory=list)
    name: str = "greedy"
    _written: int = 0
    _kept: int = 0

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """As `Greedy`."""
        self._written = self.subject.target.cache.layers[0].in_flight
        verdict = Greedy().accept(draft, law, coins)
        self._kept = len(verdict.path)
        return verdict

    def after_step(self, lane: Lane) -> None:
        """Notes what the cache holds now."""
        self.steps.append(
            Step(self._written, self._kept, _committed(self.subject, lane.number), len(lane.context.tokens) - 1)
        )


def measure(subject: Subject) -> Rows:
    """A run with chains and one with trees, then single forwards."""
    target, budget = subject.target, subject.effort.budgets[0]
    tokens = subject.new_tokens(subject.effort.sweep_tokens)
    chain, tree = _Ledger(subject), _Ledger(subject)
    for ledger, kind in ((chain, "chain"), (tree, "best_first")):
        subject.run(make_drafter("mixed", tree=kind), budget, tokens, rule=ledger, after_step=ledger.after_step)
    branches, length, shared = SHARING
    with subject.lane(subject.text(32)) as lane:
        in_flight = {shape: _in_flight(subject, lane, comb(*shape)) for shape in product(WIDTHS, DEPTHS)}
        paths = [[*range(shared), *range(10 * (i + 1), 10 * (i + 1) + length - shared)] for i in range(branches)]
        vocabulary = target.vocab_size
        trie = TokenTree.from_paths(0, [[token % vocabulary for token in path] for path in paths])
        together = _in_flight(subject, lane, trie)
        row_bytes = target.snapshot(lane).nbytes / target.length(lane)
    return Rows(tuple(chain.steps), tuple(tree.steps), budget, in_flight, together, branches * (length + 1), row_bytes)


def _committed(subject: Subject, lane: int) -> int:
    """Rows that a layer without a sliding window holds; where all have one, the cache's own count of tokens."""
    target = subject.target
    layer = next((index for index, window in enumerate(target.windows) if window is None), None)
    return target.length(lane) if layer is None else target.cache.rows(lane, layer)[0].shape[1]


def _in_flight(subject: Subject, lane: int, tree: TokenTree) -> int:
    subject.target.forward({lane: tree})
    rows = subject.target.cache.layers[0].in_flight
    subject.target.rollback()
    return rows


def finding(found: Rows) -> Finding:
    """What it says about the claim."""
    sizes = found.in_flight
    exact = sum(rows == 1 + width * depth for (width, depth), rows in sizes.items())
    steps = (*found.chain, *found.tree)
    clean = sum(step.committed == step.expected for step in steps)
    written, kept = _mean(found.tree, "written"), _mean(found.tree, "kept")
    widest, deepest = max(WIDTHS), max(DEPTHS)
    return Finding(
        headline=f"A tree step wrote {written:.1f} rows, kept {kept:.1f} and rolled back {written - kept:.1f}; after "
        f"{clean} of {len(steps)} steps the cache held exactly the rows of the text.",
        says=(
            Check(
                "during a step it grows with width and depth",
                f"{sizes[1, deepest]} rows at width 1, {sizes[widest, deepest]} at width {widest} (depth {deepest}); "
                f"{sizes[widest, 1]} at depth 1; one row per node in {exact} of {len(sizes)} shapes",
                exact == len(sizes),
            ),
            Check(
                "what branches share is stored once",
                f"{SHARING[0]} branches of {SHARING[1]} tokens, the first {SHARING[2]} in common: {found.shared} rows; "
                f"one by one {found.apart}",
                found.shared < found.apart,
            ),
            Check(
                "after the commit the accepted path alone is left",
                f"after {clean} of {len(steps)} steps: as many rows as the text has tokens before the root",
                clean == len(steps) > 0,
            ),
        ),
        instead=(),
        how="Rows are counted in the cache of one layer, between forward and commit and after the commit, in "
        f"two greedy runs with up to {found.budget} nodes per step, and in single forwards of trees of several widths "
        f"and depths. A row is the keys and values of one token: {found.row_bytes / 1e3:.1f} kB over all layers.",
        exhibits=(
            BarChart(
                "Rows per step",
                Axis("rows, mean over steps"),
                ("kept", "rolled back"),
                tuple(
                    (f"{name}, {found.budget} nodes", (_mean(rows, "kept"), _mean(rows, "dropped")))
                    for name, rows in (("chain", found.chain), ("tree", found.tree))
                ),
            ),
            LineChart(
                "Growth of the cache over a text written with trees",
                Axis("step"),
                Axis("rows"),
                (
                    Series(
                        "with the tree in flight",
                        tuple((i + 1, s.committed - s.kept + s.written) for i, s in enumerate(found.tree)),
                    ),
                    Series("after the commit", tuple((i + 1, s.committed) for i, s in enumerate(found.tree))),
                ),
            ),
            LineChart(
                "Rows in flight against depth",
                Axis("depth"),
                Axis("rows"),
                tuple(
                    Series(f"width {width}", tuple((depth, sizes[width, depth]) for depth in DEPTHS))
                    for width in WIDTHS
                ),
            ),
            Table(
                "Rows per step",
                ("", "written", "kept", "rolled back", "memory of those rolled back"),
                tuple(
                    (
                        name,
                        f"{_mean(rows, 'written'):.2f}",
                        f"{_mean(rows, 'kept'):.2f}",
                        f"{_mean(rows, 'dropped'):.2f}",
                        megabytes(found.row_bytes * _mean(rows, "dropped")),
                    )
                    for name, rows in (("chain", found.chain), ("tree", found.tree))
                ),
            ),
        ),
    )


def _mean(steps: Sequence[Step], what: str) -> float:
    return sum(getattr(step, what) for step in steps) / max(1, len(steps))
