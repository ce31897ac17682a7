"""Kinds of trees against slow rebuilds: path by path, without a tree and without a cache."""

from __future__ import annotations

import heapq

import pytest
import torch

from branchwise.draft.expand import Expansion
from branchwise.draft.expand_best_first import BestFirstExpansion
from branchwise.draft.expand_static import RankedShape, StaticExpansion
from branchwise.draft.protocol import DraftContext
from branchwise.draft.tree_kind import TREE_KINDS, tree_kind
from oracles import logits_by_recompute
from small_model_rig import SHAPE, paths_of, small
from zoo import VOCAB, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]


def children_of(model, tokens, path, width):
    logp = torch.log_softmax(logits_by_recompute(model, [*tokens, *path])[-1], 0).topk(width)
    return [(int(token), float(value)) for token, value in zip(logp.indices, logp.values, strict=True)]


def drafted(model, kind, budget=10, **options):
    context = DraftContext(list(PROMPT), VOCAB)
    drafter = small(model, kind, **options)
    return drafter.propose([drafter.start(context)], [context], [budget])[0]


@pytest.mark.parametrize("seed", range(3))
def test_best_first_with_forwards_enough_is_the_best_tree_of_its_size(seed):
    """The oracle pops the likeliest path from a heap and asks the model for its children, one path at a time."""
    model = tiny_llama(seed=seed)
    draft = drafted(model, "best_first", depth=20, width=3)
    heap, best = [(0.0, ())], []
    while len(best) < 10:
        logp, path = heapq.heappop(heap)
        best.append(path)
        for token, value in children_of(model, PROMPT, path, 3):
            heapq.heappush(heap, (logp - value, (*path, token)))
    assert set(paths_of(draft.tree)) == set(best[1:])
    assert list(draft.scores) == sorted(draft.scores, reverse=True)


def test_best_first_stops_after_its_forwards():
    draft = drafted(tiny_llama(seed=1), "best_first", depth=2, width=2)
    assert draft.tree.height <= 2 and len(draft.tree) <= 1 + 2 + 4


def test_a_static_tree_holds_the_candidates_of_its_ranks():
    model = tiny_llama(seed=1)
    expected = set()
    for ranks in SHAPE:
        path = ()
        for rank in ranks:
            path = (*path, children_of(model, PROMPT, path, 2)[rank][0])
        expected.add(path)
    assert set(paths_of(drafted(model, "static", budget=8).tree)) == expected
    # below the size of the shape its likeliest nodes stay
    fewer = drafted(model, "static", budget=4)
    assert set(paths_of(fewer.tree)) < expected and len(fewer.tree) == 4
    assert list(fewer.scores) == sorted(drafted(model, "static", budget=8).scores, reverse=True)[:3]


def test_a_chain_is_as_deep_as_its_budget():
    model = tiny_llama(seed=1)
    tree = drafted(model, "chain", budget=7).tree
    path = ()
    for _ in range(6):
        path = (*path, children_of(model, PROMPT, path, 1)[0][0])
    assert tree.tokens[1:] == path and tree.parents == tuple(range(-1, 6))
    assert drafted(model, "chain", budget=7, depth=3).tree.height == 3


def _forced(path):
    """After 1 come 2 and 3; after 2, 2 comes 4."""
    return {(1,): [2, 3], (2, 2): [4]}.get(path, [])


@pytest.mark.parametrize("make", [Expansion, BestFirstExpansion])
def test_forced_tokens_are_followed_without_a_forward(make):
    growing = make(20, 2, 5, forced=_forced)
    assert growing.frontier == [(0.0, ())]
    growing.take([[(1, -0.1), (2, -0.5)]])
    assert growing.frontier == [(-0.1, (1, 2, 3)), (-0.5, (2,))]
    growing.take([[(5, -0.2), (6, -3.0)], [(2, -0.1)]])
    assert [path for _, path in growing.frontier] == [(1, 2, 3, 5), (2, 2, 4)]
    tree = growing.tree(9, "s").tree
    assert set(paths_of(tree)) == {
        (1,), (1, 2), (1, 2, 3), (1, 2, 3, 5), (1, 2, 3, 6), (2,), (2, 2), (2, 2, 4),
    }  # fmt: skip


def test_a_forced_run_ends_at_the_deepest_level():
    growing = Expansion(20, 2, 2, forced=lambda path: [7] * 9)
    assert growing.frontier == [] and growing.tree(1, "s").tree.tokens == (1, 7, 7)


def test_a_shape_by_hand():
    shape = RankedShape.from_index_paths([(0,), (2,), (0, 1)])
    assert shape.children == (((0, 1), (2, 2)), ((1, 3),), (), ())
    assert (shape.height, shape.width, len(shape)) == (2, 3, 4)
    growing = StaticExpansion(9, shape, 5)
    growing.take([[(10, -0.1), (11, -0.2), (12, -0.3)]])
    assert growing.frontier == [(-0.1, (10,))]
    growing.take([[(20, -0.5)]])  # there is no second candidate
    assert growing.frontier == [] and growing.tree(1, "s").tree.tokens == (1, 10, 12)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "bush"}, f"'bush'; there are {', '.join(TREE_KINDS)}"),
        ({"name": "dynamic", "width": 0}, "width >= 1, got 0"),
        ({"name": "static"}, "go together"),
        ({"name": "dynamic", "shape": [(0,)]}, "go together"),
        ({"name": "static", "shape": [(0,)], "depth": 2}, "from its shape"),
        ({"name": "static", "shape": []}, "at least one index path"),
        ({"name": "chain", "width": 2}, "leave width=2 out"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        tree_kind(**options)
