"""Static shapes: index paths, what they promise, and their files."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.tree import StaticShape, kary_shape
from branchwise.tree.static_shape import rank_chances

pytestmark = pytest.mark.core

closed_paths = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=8).map(
    lambda drawn: sorted({path[:end] for path in drawn for end in range(1, len(path) + 1)})
)


def test_by_hand():
    #            0
    #          /   \           paths (0,) (2,) (0, 0) (0, 1) (2, 4)
    #      (0,)    (2,)
    #     /    \       \
    # (0, 0) (0, 1)  (2, 4)
    shape = StaticShape([(0, 1), (2, 4), (0,), (0, 0), (2,)])
    assert shape.paths == ((0,), (2,), (0, 0), (0, 1), (2, 4))
    assert shape.parents == (-1, 0, 0, 1, 1, 2)
    assert shape.ranks == (0, 0, 2, 0, 1, 4)
    assert (len(shape), shape.height, shape.leaves, shape.widths) == (6, 2, 3, (1, 2, 3))
    alone = StaticShape([])
    assert (len(alone), alone.height, alone.leaves, alone.widths) == (1, 0, 1, (1,))
    assert shape == StaticShape(list(shape.paths)) != alone
    assert len({shape, StaticShape(shape.paths)}) == 1


def test_kary():
    shape = StaticShape.kary((2, 3))
    assert shape.parents == kary_shape((2, 3))
    assert shape.paths[:4] == ((0,), (1,), (0, 0), (0, 1))
    assert StaticShape.kary(()) == StaticShape([])
    with pytest.raises(ValueError, match=r"branching\[1\] must be >= 1, got 0"):
        StaticShape.kary((2, 0, 1))


@given(closed_paths, st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=4))
def test_expected_tokens_is_the_mean_over_all_outcomes(paths, acceptance):
    # the target's rank at every node is independent: enumerate it along the one path that is walked
    chances = rank_chances(acceptance)
    shape = StaticShape(paths)
    mean = 0.0
    for ranks in product(range(5), repeat=4):  # rank 4: none of the candidates
        chance, kept = 1.0, 0
        for rank in ranks:
            chance *= chances[rank] if rank < 4 else 1.0 - sum(chances)
        while kept < 4 and ranks[: kept + 1] in shape.paths:
            kept += 1
        mean += chance * (kept + 1)
    assert shape.expected_tokens(acceptance) == pytest.approx(mean)


def test_chances_of_ranks_by_hand():
    assert rank_chances((0.5, 0.5, 1.0, 0.3)) == (0.5, 0.25, 0.25, 0.0)
    assert StaticShape([(0,), (1,), (0, 0)]).expected_tokens((0.5, 0.5)) == 1 + 0.5 + 0.25 + 0.25
    with pytest.raises(ValueError, match=r"acceptance\[1\] must be a probability, got 1.5"):
        rank_chances((0.5, 1.5))
    with pytest.raises(ValueError, match="uses rank 2, acceptance is given for 2 ranks"):
        StaticShape([(2,)]).expected_tokens((0.5, 0.5))
    assert StaticShape([]).expected_tokens(()) == 1.0


@given(closed_paths)
def test_the_same_after_a_round_trip(tmp_path_factory, paths):
    file = tmp_path_factory.mktemp("shapes") / "tree.json"
    StaticShape(paths).save(file)
    assert StaticShape.load(file) == StaticShape(paths)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Expecting property name"),
        ("[[0]]", 'it needs "format": "branchwise-tree"'),
        ('{"format": "branchwise-tree", "version": 2, "paths": []}', "version 2, this program reads 1"),
        ('{"format": "branchwise-tree", "version": 1, "paths": [], "depth": 3}', "got format, version, paths, depth"),
        ('{"format": "branchwise-tree", "version": 1, "paths": [[0], [1, true]]}', r"index path 1 .* got \[1, True\]"),
        ('{"format": "branchwise-tree", "version": 1, "paths": 3}', "a list, got int"),
        ('{"format": "branchwise-tree", "version": 1, "paths": [[1, 0]]}', r"\(1,\) is missing"),
    ],
)
def test_a_wrong_file_is_refused_with_its_fault_and_the_way_to_import(tmp_path: Path, content: str, message: str):
    file = tmp_path / "tree.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        StaticShape.load(file)
    assert "tree.json" in str(caught.value) and "import-tree" in str(caught.value)


def test_the_file_is_small_json(tmp_path: Path):
    file = tmp_path / "tree.json"
    StaticShape([(0,), (0, 1)]).save(file)
    assert json.loads(file.read_text()) == {"format": "branchwise-tree", "version": 1, "paths": [[0], [0, 1]]}
