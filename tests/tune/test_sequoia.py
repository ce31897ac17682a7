"""Sequoia's dynamic programme against all small trees, and the acceptance vector it is fed with."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import StepRecord
from branchwise.tree import StaticShape, TokenTree
from branchwise.tune.sequoia import acceptance_by_rank, sequoia
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

pytestmark = pytest.mark.core

probability = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


@cache
def all_shapes(nodes: int, ranks: int, depth: int, children: int) -> frozenset[frozenset[tuple[int, ...]]]:
    """Every set of index paths with at most so many nodes, root included, found by adding leaf after leaf."""
    shapes = {frozenset()}
    for _ in range(nodes - 1):
        for shape in list(shapes):
            for parent in [(), *shape]:
                taken = [path for path in shape if path[:-1] == parent and path != ()]
                if len(parent) < depth and len(taken) < children:
                    shapes |= {shape | {(*parent, rank)} for rank in range(ranks)}
    return frozenset(shapes)


@settings(max_examples=60, deadline=None)
@given(
    acceptance=st.lists(probability, min_size=3, max_size=3),
    budget=st.integers(1, 5),
    depth=st.sampled_from([None, 1, 2, 3]),
    children=st.sampled_from([None, 1, 2]),
)
def test_no_small_tree_is_better(acceptance, budget, depth, children):
    found = sequoia(acceptance, budget, depth, children)
    assert len(found) <= budget and found.height <= (depth or 9)
    assert all(found.parents.count(node) <= (children or 9) for node in range(len(found)))
    allowed = all_shapes(budget, 3, depth or 9, children or 9)
    best = max(StaticShape(paths).expected_tokens(acceptance) for paths in allowed)
    assert found.expected_tokens(acceptance) == pytest.approx(best, abs=1e-12)
    # no node that adds nothing
    smaller = [found.paths[:at] + found.paths[at + 1 :] for at in range(len(found) - 1) if _is_leaf(found, at + 1)]
    assert all(StaticShape(paths).expected_tokens(acceptance) < best for paths in smaller)


def _is_leaf(shape: StaticShape, node: int) -> bool:
    return node not in shape.parents


def test_by_hand():
    # ranks are right with chances 0.6, 0.2; a third token of the chain adds 0.216, the second child of the root 0.2
    assert sequoia((0.6, 0.5), 4) == StaticShape([(0,), (0, 0), (0, 0, 0)])
    assert sequoia((0.6, 0.5), 5) == StaticShape([(0,), (1,), (0, 0), (0, 0, 0)])
    assert sequoia((0.6, 0.5), 4, max_depth=2) == StaticShape([(0,), (1,), (0, 0)])
    assert sequoia((0.6, 0.5), 5, max_children=1) == StaticShape.kary((1,) * 4)
    # the second rank is right more often than the first
    assert sequoia((0.1, 0.9), 2) == StaticShape([(1,)])
    assert sequoia((0.0,), 9) == sequoia((), 9) == sequoia((0.5,), 1) == StaticShape([])


def test_larger_budgets_give_more_until_the_bounds_are_reached():
    acceptance = (0.55, 0.3, 0.25, 0.2, 0.1)
    promises = [sequoia(acceptance, budget).expected_tokens(acceptance) for budget in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert promises == sorted(promises) and promises[0] == 1.0
    full = sequoia(acceptance, 1000, max_depth=2, max_children=3)
    assert full == StaticShape.kary((3, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0.5,), 0), "budget must be >= 1, got 0"),
        (((0.5,), 3, -1), "max_depth must be >= 0, got -1"),
        (((0.5,), 3, 1, -2), "max_children must be >= 0, got -2"),
        (((0.5, -0.1), 3), r"acceptance\[1\] must be a probability"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sequoia(*arguments)


def record(parents: list[int], path: list[int]) -> StepRecord:
    tree = TokenTree(range(len(parents)), parents)
    return StepRecord(DraftTree.deterministic(tree), Verdict(tuple(path), 99), ())


def test_acceptance_by_hand():
    #     0          root: rank 1 right; node 2: its only child wrong
    #    / \
    #   1   2
    #       |
    #       3
    first = record([-1, 0, 0, 2], [0, 2])
    assert acceptance_by_rank([first]) == (0.0, 1.0)
    # a chain of two, both right: rank 0 tried twice more and right twice; the leaf's children are not known
    second = record([-1, 0, 1], [0, 1, 2])
    assert acceptance_by_rank([first, second]) == (0.5, 1.0)
    # three children, none right
    third = record([-1, 0, 0, 0], [0])
    assert acceptance_by_rank([first, second, third]) == (2 / 5, 1 / 2, 0.0)
    with pytest.raises(ValueError, match="nothing was drafted below an accepted node"):
        acceptance_by_rank([record([-1], [0])])


def test_the_measured_vector_predicts_the_tokens_per_step_it_was_measured_on():
    # all outcomes of a fixed shape, as often as a known vector says, in twenties
    shape = StaticShape([(0,), (1,), (0, 0), (0, 1), (1, 0)])
    acceptance = (0.5, 0.4)  # chances 10/20 and 4/20
    times = {(): 6, (0,): 10, (1,): 4}
    records, tokens = [], 0
    for first, often in times.items():
        for second, more in (times if first == (0,) else {(): 10, (0,): 10} if first else {(): 20}).items():
            path = [0]
            for rank in first + (second if first else ()):
                path.append([child for child in range(1, 6) if shape.parents[child] == path[-1]][rank])
            records += [record(list(shape.parents), path)] * (often * more)
            tokens += len(path) * often * more
    assert acceptance_by_rank(records) == pytest.approx(acceptance)
    assert shape.expected_tokens(acceptance) == pytest.approx(tokens / len(records))
