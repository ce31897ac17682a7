"""Drawings as SVG: well-formed whatever the tokens are, boxes that do not overlap, masks equal to the tree's own."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.show import mask_svg, step_json, step_mask_svg, step_svg, tree_json, tree_svg
from branchwise.show.layout import lay_out
from branchwise.show.mask import MaskGrid, ancestor_matrix
from branchwise.tree import TokenGraph, TokenTree
from show_rig import RECORD, WORDS, Words, random_record

pytestmark = pytest.mark.core
SVG = "{http://www.w3.org/2000/svg}"
GRAPH = TokenGraph((5, 6, 7, 8, 9), [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)])


def words_of(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def squares_of(svg: str, grid: MaskGrid) -> set[tuple[int, int]]:
    """Which squares a drawn mask fills, read off its paths."""
    found = set()
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if path.get("class") in ("bw-seen", "bw-self"):
            for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", path.get("d", "")):
                found.add(
                    (round((float(y) - 1 - grid.top) / grid.cell), round((float(x) - 1 - grid.start) / grid.cell))
                )
    return found


def test_the_tree_by_hand() -> None:
    svg = tree_svg(step_json(RECORD, Words()))
    words = words_of(svg)
    assert [word for word in words if word.startswith("·") or word in ("the", "↵")] == [
        "the",
        "·cat",
        "·dog",
        "·ran",
        "·sat",
        "↵",
    ]
    assert "draft 0.90" in words and "target 0.12" in words and "bonus token" in words and "NG" in words
    kinds = [group.get("class") for group in ElementTree.fromstring(svg).iter(f"{SVG}g")]
    assert kinds == [
        "bw-node bw-root",
        "bw-node bw-accepted",
        "bw-node bw-rejected",
        "bw-node bw-rejected",
        "bw-node bw-accepted",
        "bw-node bw-bonus",
    ]
    boxes = lay_out(step_json(RECORD, Words())).boxes
    assert len({boxes[node].middle for node in (0, 1, 4, 5)}) == 1, "the lit path is a straight line"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("draw", [tree_svg, step_mask_svg, step_svg])
def test_every_word_is_well_formed_and_nothing_comes_from_outside(draw, seed: int) -> None:
    step = step_json(random_record(seed, 40, len(WORDS)), Words(), committed=7)
    svg = draw(step, title="<&\"'\x00 title")
    for element in ElementTree.fromstring(svg).iter():
        assert element.tag.removeprefix(SVG) in ("svg", "title", "style", "g", "rect", "path", "text")
        assert not [name for name in element.attrib if name.endswith(("href", "src")) or name.startswith("on")]
    assert "url(" not in svg and "@import" not in svg


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_boxes_lie_apart_and_children_to_the_right_of_their_parents(seed: int, nodes: int) -> None:
    step = step_json(random_record(seed, nodes), Words())
    layout = lay_out(step)
    boxes = layout.boxes
    assert len(boxes) == nodes + 1
    for i, one in enumerate(boxes):
        assert one.x >= 0 and one.y >= 0 and one.x + one.width <= layout.width and one.y + one.height <= layout.height
        for other in boxes[:i]:
            apart = (
                one.x >= other.x + other.width
                or other.x >= one.x + one.width
                or one.y >= other.y + other.height
                or other.y >= one.y + one.height
            )
            assert apart
    for node in range(1, nodes):
        parent = boxes[step["nodes"][node]["parent"]]
        assert boxes[node].x >= parent.x + parent.width and boxes[node].y >= parent.y


@pytest.mark.parametrize("tree", [TokenTree((0, 1, 2, 3, 4), (-1, 0, 0, 1, 1)), GRAPH], ids=["tree", "graph"])
@pytest.mark.parametrize("committed", [None, 100])
def test_the_drawn_mask_is_the_tree_s_own(tree: TokenTree | TokenGraph, committed: int | None) -> None:
    own = tree.ancestors()
    assert ancestor_matrix(tree_json(tree)) == own.tolist()
    svg = mask_svg(own, committed=committed)
    expected = {(int(query), int(key)) for query, key in own.nonzero().tolist()}
    assert squares_of(svg, MaskGrid.of(len(tree), committed)) == expected
    assert ("100" in words_of(svg)) is (committed is not None)


@pytest.mark.parametrize("nodes", [13, 40, 100])
def test_masks_of_every_size(nodes: int) -> None:
    record = random_record(3, nodes)
    svg = step_mask_svg(step_json(record, Words()))
    expected = {(int(query), int(key)) for query, key in record.draft.tree.ancestors().nonzero().tolist()}
    assert squares_of(svg, MaskGrid.of(nodes, None)) == expected


def test_a_deep_chain_is_drawn_without_recursion() -> None:
    assert tree_svg(tree_json(TokenTree.from_chain(0, [1] * 3000))).count("bw-node bw-plain") == 3001


def test_drawings_are_the_same_every_time() -> None:
    step = step_json(RECORD, Words())
    assert step_svg(step) == step_svg(step)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="theme must be one of auto, light, dark, got 'sepia'"):
        tree_svg(step_json(RECORD), theme="sepia")
    with pytest.raises(ValueError, match="a mask over 2 nodes needs rows of that length"):
        mask_svg([[True], [True, True]])
    with pytest.raises(ValueError, match="needs as many labels, got 1"):
        mask_svg([[True, False], [True, True]], ["a"])
    assert 'data-theme="dark"' in tree_svg(step_json(RECORD), theme="dark")


def test_a_picture_in_pixels(tmp_path: Path) -> None:
    # pictures are drawn with matplotlib, an extra
    pytest.importorskip("matplotlib", reason="the picture needs the extra plot")
    from branchwise.show.picture import write_png

    step = step_json(random_record(1, 20), Words(), committed=5)
    write_png(step, tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    # 200 levels would be 38,000 pixels
    write_png(tree_json(TokenTree.from_chain(0, [1] * 200)), tmp_path / "chain.png")
    width = int.from_bytes((tmp_path / "chain.png").read_bytes()[16:20], "big")
    assert 29_000 < width <= 30_000
