"""Best-first growth against the best tree found by trying all of them."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import grow
from branchwise.draft.best_first import LEAST_SHARE

pytestmark = pytest.mark.core


def random_expansion(seed: int, width: int = 2, deepest: int = 2) -> dict:
    coins = random.Random(seed)
    table, level = {}, [()]
    for _ in range(deepest):
        following = []
        for path in level:
            table[path] = [(token, (0.3 + 0.7 * coins.random()) / width, "toy") for token in range(width)]
            following += [(*path, token) for token in range(width)]
        level = following
    return table


def best_sum(table: dict, drafted: int) -> float:
    """The largest sum of path probabilities over all subtrees of ``drafted`` nodes, by enumeration."""
    weight: dict[tuple[int, ...], float] = {(): 1.0}
    for path, children in table.items():  # parents come before children
        for token, estimate, _ in children:
            weight[(*path, token)] = weight[path] * estimate
    nodes = [path for path in weight if path]
    best = 0.0
    for chosen in combinations(nodes, min(drafted, len(nodes))):
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
            best = max(best, sum(weight[path] for path in chosen))
    return best


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), drafted=st.integers(0, 6))
def test_no_tree_of_the_same_size_promises_more(seed, drafted):
    table = random_expansion(seed)
    growth = grow(0, drafted + 1, None, 10, lambda path, least: table.get(path, ()))
    assert sum(growth.scores[1:]) == pytest.approx(best_sum(table, drafted))
    assert growth.scores == sorted(growth.scores, reverse=True)


def grown_by_sorting(budget: int, table: dict, least_score: float) -> list[tuple[int, int, float]]:
    """Token, parent and score of every node: all candidates are kept and sorted anew; of equal ones the first found."""
    nodes, paths = [(0, -1, 1.0)], [()]
    candidates: list[tuple[int, int, float]] = []
    for node in range(budget - 1):
        score = nodes[node][2]
        for token, estimate, _ in table.get(paths[node], ()):
            if estimate >= least_score / score and 0 <= token < 10:
                candidates.append((token, node, score * estimate))
        candidates.sort(key=lambda one: -one[2])
        if node == len(candidates):
            break
        nodes.append(candidates[node])
        paths.append((*paths[candidates[node][1]], candidates[node][0]))
    return nodes


@settings(max_examples=100, deadline=None)
@given(
    budget=st.integers(1, 20),
    children=st.lists(
        st.lists(
            st.tuples(st.integers(-1, 10), st.sampled_from([0.0, 0.001, 0.25, 0.5, 0.5, 1.0, 1 / 3])),
            max_size=4,
            unique_by=lambda child: child[0],
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_nodes_come_as_if_all_candidates_were_sorted_at_every_step(budget, children):
    table: dict = {}

    def expand(path, least):
        table[path] = [(token, estimate, "toy") for token, estimate in children[sum(path) % len(children)]]
        return table[path]

    growth = grow(0, budget, None, 10, expand)
    assert [*zip(growth.tokens, growth.parents, growth.scores, strict=True)] == grown_by_sorting(
        budget, table, LEAST_SHARE / budget
    )


def test_expands_lazily():
    asked = []

    def expand(path, least):
        asked.append(path)
        return [(1, 0.9, "toy"), (2, 0.1, "toy")]

    growth = grow(7, 4, None, 10, expand)
    assert growth.tokens == [7, 1, 1, 1]
    assert asked == [(), (1,), (1, 1)]  # the last node is never asked for children


def test_drops_what_cannot_be_a_token():
    growth = grow(0, 9, 1, 4, lambda path, least: [(4, 0.9, "toy"), (-1, 0.9, "toy"), (3, 0.5, "toy"), (2, 0.0, "toy")])
    assert growth.tokens == [0, 3]


def test_depth_limit_zero_is_the_lone_root():
    assert grow(5, 9, 0, 10, lambda path, least: [(1, 0.9, "toy")]).tokens == [5]
