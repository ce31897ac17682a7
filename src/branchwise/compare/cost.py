"""What a forward costs: against nodes, against branches at equal nodes, and against a batch of separate sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from ..bench.limits import once
from ..target.huggingface import HuggingFaceTarget
from ..tree import TokenTree, kary_shape
from .exhibits import Axis, BarChart, LineChart, Series, Table
from .finding import Finding
from .phrases import megabytes
from .subject import Subject
from .verdicts import Check

#: a forward up to this multiple of a plain one counts as flat: reading the weights takes longer than multiplying
FLAT = 1.5
#: branches at equal nodes may differ by this share, twice the noise of a busy machine
LEVEL = 0.25
#: most nodes that are tried to leave the flat region, which on a GPU is wide
MOST_NODES = 4096
#: the batch: so many branches, so many tokens each, the first of which all share
BRANCHES, LENGTH, SHARED = 8, 8, 4

Key = TypeVar("Key")


@dataclass(frozen=True)
class Cost:
    """What was measured; all times in milliseconds.

    Attributes:
        by_nodes: a forward of a binary tree, by nodes.
        by_branches: a forward at equal nodes, by branches.
        branch_nodes: their nodes, the root included.
        context: committed tokens before the trees.
        trie_ms: a forward of some branches as one tree.
        batch_ms: a forward of the same branches as separate sequences, each with a cache of its own.
        trie_nodes: nodes of the tree.
        batch_nodes: nodes of the sequences.
        trie_bytes: committed keys and values that the tree needs.
        batch_bytes: those of the sequences.
        repeats: calls, the best of which counts.
    """

    by_nodes: Mapping[int, float]
    by_branches: Mapping[int, float]
    branch_nodes: int
    context: int
    trie_ms: float
    batch_ms: float
    trie_nodes: int
    batch_nodes: int
    trie_bytes: int
    batch_bytes: int
    repeats: int

    @property
    def flat_until(self) -> int:
        """Most nodes whose forward is still in the flat region."""
        plain = self.by_nodes[min(self.by_nodes)]
        return max(nodes for nodes, ms in self.by_nodes.items() if ms <= FLAT * plain)

    @property
    def doubling(self) -> float:
        """How many-fold the last doubling of nodes made the time."""
        half, full = sorted(self.by_nodes)[-2:]
        return self.by_nodes[full] / self.by_nodes[half]

    def proportional(self) -> tuple[tuple[float, float], ...]:
        """The line through the largest tree's time on which time is proportional to nodes."""
        largest = max(self.by_nodes)
        return tuple((nodes, self.by_nodes[largest] * nodes / largest) for nodes in sorted(self.by_nodes))

    @property
    def spread(self) -> float:
        """How much the dearest arrangement of branches costs more than the cheapest, as a share."""
        return max(self.by_branches.values()) / min(self.by_branches.values()) - 1


def measure(subject: Subject) -> Cost:
    """All trees of one kind take turns."""
    effort, target = subject.effort, subject.target
    text = subject.text(effort.context)
    limit = target.context_limit
    drafted = effort.branch_nodes
    depth = drafted if limit is None else min(drafted, limit - len(text))
    branches = [2**power for power in range(drafted.bit_length()) if drafted // 2**power <= depth]
    with subject.lane(text) as lane:
        by_nodes = _by_nodes(target, lane, effort.nodes, effort.repeats)
        by_branches = _best(
            {count: _forward(target, {lane: comb(count, drafted // count)}) for count in branches},
            target,
            effort.repeats,
        )
    trie_ms, batch_ms, trie_nodes, batch_nodes, context_bytes = _trie_and_batch(subject, text)
    return Cost(
        by_nodes=by_nodes,
        by_branches=by_branches,
        branch_nodes=drafted + 1,
        context=len(text) - 1,
        trie_ms=trie_ms,
        batch_ms=batch_ms,
        trie_nodes=trie_nodes,
        batch_nodes=batch_nodes,
        trie_bytes=context_bytes,
        batch_bytes=BRANCHES * context_bytes,
        repeats=effort.repeats,
    )


def binary(nodes: int) -> TokenTree:
    """A binary tree of so many nodes, breadth-first."""
    return TokenTree([0] * nodes, kary_shape((2,) * nodes.bit_length())[:nodes])


def comb(branches: int, length: int) -> TokenTree:
    """So many chains of so many tokens below one root."""
    parents = [-1]
    for _ in range(branches):
        parents += [0, *range(len(parents), len(parents) + length - 1)]
    return TokenTree([0] * len(parents), parents)


def _by_nodes(target: HuggingFaceTarget, lane: int, sizes: tuple[int, ...], repeats: int) -> dict[int, float]:
    """Times by nodes; goes on doubling while a forward costs little more than a plain one."""
    found = _best({size: _forward(target, {lane: binary(size)}) for size in sizes}, target, repeats)
    if target.device.type == "cpu":  # there the flat region ends soon, and what looks like one is noise
        return found
    while (largest := max(found)) < MOST_NODES and found[largest] < 2 * FLAT * found[min(found)]:
        found |= _best({2 * largest: _forward(target, {lane: binary(2 * largest)})}, target, repeats)
    return found


def _forward(target: HuggingFaceTarget, trees: dict[int, TokenTree]) -> Callable[[], None]:
    def call() -> None:
        target.forward(trees)
        target.rollback()

    return call


def _best(calls: Mapping[Key, Callable[[], None]], target: HuggingFaceTarget, repeats: int) -> dict[Key, float]:
    """Milliseconds of every call, the best of several; they take turns, and a first round warms up."""
    found: dict[Key, float] = {}
    for repeat in range(repeats + 1):
        for key, call in calls.items():
            milliseconds = 1000 * once(call, target.device)
            if repeat:
                found[key] = min(found.get(key, milliseconds), milliseconds)
    return found


def _trie_and_batch(subject: Subject, text: list[int]) -> tuple[float, float, int, int, int]:
    """Times of both, their nodes, and the bytes of one context."""
    target = subject.target
    vocabulary = target.vocab_size
    ends = [[(branch * LENGTH + place + 1) % vocabulary for place in range(LENGTH)] for branch in range(BRANCHES)]
    paths = [[*ends[0][:SHARED], *end[SHARED:]] for end in ends]
    trie = TokenTree.from_paths(text[-1], paths)
    chains = [TokenTree.from_chain(text[-1], path) for path in paths]
    with ExitStack() as lanes:
        numbers = [lanes.enter_context(subject.lane(text)) for _ in chains]
        calls = {
            "trie": _forward(target, {numbers[0]: trie}),
            "batch": _forward(target, dict(zip(numbers, chains, strict=True))),
        }
        found = _best(calls, target, subject.effort.repeats)
        context_bytes = target.snapshot(numbers[0]).nbytes
    return found["trie"], found["batch"], len(trie), sum(map(len, chains)), context_bytes


def finding(found: Cost) -> Finding:
    """What it says about the claim."""
    half, full = sorted(found.by_nodes)[-2:]
    few, many = min(found.by_branches), max(found.by_branches)
    saved = 1 - found.trie_ms / found.batch_ms
    return Finding(
        headline=f"From {half} to {full} nodes a forward takes {found.doubling:.2f} times as long; from {few} to "
        f"{many} branches at {found.branch_nodes} nodes it changes by {100 * found.spread:.0f} % at most.",
        says=(
            Check(
                "above the flat region the cost grows with the nodes",
                f"flat up to {found.flat_until} nodes (within {FLAT:g} times a plain forward); from {half} to {full} "
                f"nodes {found.doubling:.2f} times as long",
                found.flat_until < full and found.doubling > 1.3,
            ),
            Check(
                "at equal nodes the number of branches does not matter",
                f"{few} to {many} branches of together {found.branch_nodes - 1} nodes: within "
                f"{100 * found.spread:.0f} % of each other",
                found.spread <= LEVEL,
            ),
            Check(
                "one tree is cheaper than its branches as a batch of sequences",
                f"{found.trie_ms:.2f} ms for {found.trie_nodes} nodes against {found.batch_ms:.2f} ms for "
                f"{found.batch_nodes}: {100 * saved:.0f} % saved",
                found.trie_ms < found.batch_ms,
            ),
        ),
        instead=(),
        how=f"Whole forwards of the model behind {found.context} committed tokens, one sequence, best of "
        f"{found.repeats} after a warm-up, all shapes in turns. The batch: {BRANCHES} sequences of {LENGTH} tokens, "
        f"the first {SHARED} of which are the same, each with its own copy of the context's keys and values, packed "
        "into one forward without padding.",
        exhibits=(
            LineChart(
                "Cost of a forward against nodes",
                Axis("nodes", log=True),
                Axis("time", "ms"),
                (
                    Series("measured", tuple(sorted(found.by_nodes.items()))),
                    Series("proportional to nodes", found.proportional(), dashed=True),
                ),
            ),
            LineChart(
                f"Cost against branches, {found.branch_nodes} nodes each time",
                Axis("branches", log=True),
                Axis("time", "ms"),
                (Series("measured", tuple(sorted(found.by_branches.items()))),),
            ),
            BarChart(
                f"{BRANCHES} branches of {LENGTH} tokens that share their first {SHARED}",
                Axis("time", "ms"),
                ("forward",),
                (
                    (f"one tree, {found.trie_nodes} nodes", (found.trie_ms,)),
                    (f"a batch, {found.batch_nodes} nodes", (found.batch_ms,)),
                ),
            ),
            Table(
                "What the trie saves",
                ("", "one tree", "a batch", "saved"),
                (
                    _saving("nodes to compute", found.trie_nodes, found.batch_nodes, "{:.0f}".format),
                    _saving("time", found.trie_ms, found.batch_ms, "{:.2f} ms".format),
                    _saving("keys and values of the context", found.trie_bytes, found.batch_bytes, megabytes),
                ),
            ),
        ),
    )


def _saving(what: str, tree: float, batch: float, shown: Callable[[float], str]) -> tuple[str, ...]:
    return what, shown(tree), shown(batch), f"{100 * (1 - tree / batch):.0f} %"
