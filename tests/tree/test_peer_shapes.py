"""Shapes from other programs' files: the same trees, checked, and refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from branchwise.tree import StaticShape
from branchwise.tree.peer_shapes import read_peer_shape

pytestmark = pytest.mark.core

#        0
#      / | \       node numbers of a growmap are breadth-first, children in order of rank
#     1  2  3
#    / \    |
#   4   5   6
PATHS = [(0,), (1,), (2,), (0, 0), (0, 1), (2, 0)]
GROWMAP = {
    "roots": [[0], [1, 2, 3], [4, 5, 6]],
    "branches": [[3], [2, 0, 1], [0, 0, 0]],
    "Successors": [[1, 2, 3], [4, 5], [], [6], [], [], []],
    "mask": [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 0, 0, 1, 0, 0, 1],
    ],
    "depth": [0, 1, 1, 1, 2, 2, 2],
    "size": 7,
}


def written(folder: Path, content: str, name: str = "tree.json") -> Path:
    file = folder / name
    file.write_text(content)
    return file


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("choices.json", json.dumps(PATHS)),
        ("choices.txt", repr([list(path) for path in PATHS]) + "\n"),
        ("choices.txt", "[(0,), (1,), (2,), (0, 0), (0, 1), (2, 0)]"),
        ("medusa_choices.py", f"import this\nx = len('a')\nmine = {[list(path) for path in PATHS]!r}\n"),
        ("named.json", json.dumps({"mine": PATHS})),
        ("growmap.json", json.dumps(GROWMAP)),
        ("growmap.json", json.dumps({"Successors": GROWMAP["Successors"]})),
        ("ours.json", json.dumps(StaticShape(PATHS).as_dict())),
    ],
)
def test_every_format_gives_the_same_shape(tmp_path: Path, name: str, content: str):
    assert read_peer_shape(written(tmp_path, content, name)) == StaticShape(PATHS)


def test_one_of_several_lists_is_chosen_by_name(tmp_path: Path):
    file = written(tmp_path, "a = [[0]]\nb = [[0], [0, 0]]\nc = 'text'\n", "choices.py")
    assert read_peer_shape(file, name="b") == StaticShape([(0,), (0, 0)])
    with pytest.raises(ValueError, match=r"choices.py: several lists: choose one with --name, there are a, b"):
        read_peer_shape(file)
    with pytest.raises(ValueError, match="no list named 'c': choose one with --name, there are a, b"):
        read_peer_shape(file, name="c")
    with pytest.raises(ValueError, match="no named lists to choose 'a' from"):
        read_peer_shape(written(tmp_path, "[[0]]"), name="a")


def test_no_code_of_a_python_file_is_run(tmp_path: Path):
    mark = tmp_path / "was run"
    content = f"open({str(mark)!r}, 'w')\nmine = [[0]]\n"
    assert read_peer_shape(written(tmp_path, content, "choices.py")) == StaticShape([(0,)])
    assert not mark.exists()


def test_missing_prefixes_are_named_or_added(tmp_path: Path):
    file = written(tmp_path, "[[0], [1, 2], [0, 3, 1]]")
    with pytest.raises(ValueError, match=r"\(1,\) is missing from the list; .* --complete"):
        read_peer_shape(file)
    shape = read_peer_shape(file, complete=True)
    assert shape == StaticShape([(0,), (1,), (0, 3), (1, 2), (0, 3, 1)])


def test_a_pickle_needs_permission_and_may_hold_tensors_only(tmp_path: Path):
    file = tmp_path / "growmap.pt"
    torch.save(GROWMAP | {"mask": torch.tensor(GROWMAP["mask"]), "depth": torch.LongTensor(GROWMAP["depth"])}, file)
    with pytest.raises(ValueError, match="--allow-pickle"):
        read_peer_shape(file)
    assert read_peer_shape(file, allow_pickle=True) == StaticShape(PATHS)
    torch.save(GROWMAP | {"extra": Path("/")}, file)
    with pytest.raises(ValueError, match="more than tensors and lists"):
        read_peer_shape(file, allow_pickle=True)
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"growmap\.pt: it holds more than tensors and lists, or is damaged"):
        read_peer_shape(file, allow_pickle=True)


def changed(key: str, value: object) -> dict:
    return GROWMAP | {key: value}


@pytest.mark.parametrize(
    ("growmap", "message"),
    [
        (changed("size", 8), "size contradicts Successors: it is 8, not 7"),
        (changed("depth", [0, 1, 1, 1, 2, 2]), "depth contradicts Successors: it has 6 entries, not 7"),
        (changed("depth", [0, 1, 1, 2, 2, 2, 2]), "depth contradicts Successors at node 3"),
        (changed("mask", [[1] * 7] * 7), "mask contradicts Successors at node 0"),
        (changed("branches", [[3], [1, 1, 1], [0, 0, 0]]), "branches gives node 1 1 children, Successors 2"),
        (changed("branches", [[3], [2, 0]]), "lists of lists of one shape"),
        (changed("Successors", [[1, 2, 3], [4, 5], [], [5], [], [], []]), "node 5, which has a parent already"),
        (changed("Successors", [[1], [], [3], []]), "node 2 is no child"),
        (changed("Successors", [[1, 9]]), "names node 1"),
        (changed("Successors", [[1], [1]]), "names node 1"),
        (changed("Successors", []), "Successors is empty"),
        (changed("Successors", [0]), "must be a list of whole numbers, got 0"),
        (changed("colour", 1), "a growmap has the keys Successors, .* colour"),
    ],
)
def test_a_growmap_that_contradicts_itself_is_refused(tmp_path: Path, growmap: dict, message: str):
    with pytest.raises(ValueError, match=message):
        read_peer_shape(written(tmp_path, json.dumps(growmap)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[0], [0]]", "appears twice"),
        ("[[0], []]", "must not be empty"),
        ("[[0], [-1]]", "negative index"),
        ("[0, 1]", "index path 0 must be a list of whole numbers, got 0"),
        ("[[0.0]]", "whole numbers"),
        ("5", "a list, got int"),
        ("not a tree at all", "neither JSON nor a Python literal"),
        ("x = len([])", "no list is assigned"),
        ("len([])", "malformed"),
        ("", "no list is assigned"),
    ],
)
def test_what_is_no_tree_is_refused(tmp_path: Path, content: str, message: str):
    with pytest.raises(ValueError, match=f"tree.json: .*{message}"):
        read_peer_shape(written(tmp_path, content))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=8))
def test_any_shape_comes_back_from_its_growmap(tmp_path_factory, drawn):
    # ranks of a growmap have no gaps
    shape = StaticShape.kary((2, 3))
    kept = {path for path in shape.paths if path[:1] in {d[:1] for d in drawn} or path == (0,)}
    kept = {path for path in kept if path[0] == 0 or (0,) in kept}
    shape = StaticShape(kept)
    children = [[node for node in range(len(shape)) if shape.parents[node] == parent] for parent in range(len(shape))]
    file = tmp_path_factory.mktemp("growmaps") / "growmap.json"
    file.write_text(json.dumps({"Successors": children, "size": len(shape)}))
    assert read_peer_shape(file) == shape
