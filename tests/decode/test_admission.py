"""Blocks are counted as the cache takes them, and nobody in the line starves."""

from __future__ import annotations

import pytest

from branchwise.decode.admission import PATIENCE, LanePool, RequestTooLarge, WaitingLine

pytestmark = pytest.mark.core


def test_lanes_take_the_blocks_of_the_longest():
    pool = LanePool(40, tree_rows=3, block_rows=4)
    assert (pool.blocks, pool.rows, pool.taken([])) == (10, 40, 0)
    assert pool.taken([1]) == 1
    assert pool.taken([2]) == 2, "two tokens and a tree of three rows"
    assert pool.taken([1, 1, 13]) == 3 * 4
    assert pool.fits([5, 1, 1, 1, 1]) and not pool.fits([6, 1, 1, 1, 1])


def test_a_request_that_just_fits_alone_and_one_that_does_not():
    pool = LanePool(40, tree_rows=3, block_rows=4)
    pool.check(30, 7)
    with pytest.raises(RequestTooLarge, match="38 tokens, but this engine's pool of 40 rows holds 37"):
        pool.check(30, 8)


def test_rows_are_counted_in_whole_blocks():
    assert LanePool(43, tree_rows=1, block_rows=4).rows == 40


def test_first_come_first_served():
    line = WaitingLine[str]()
    line.join("abc")
    assert [line.next(lambda _: True) for _ in range(4)] == ["a", "b", "c", None]


def test_the_head_is_passed_so_often_and_no_more():
    line = WaitingLine[str]()
    line.join(["large", *"abcdefghijklmnop"])
    passed = [line.next(lambda item: item != "large") for _ in range(PATIENCE + 3)]
    assert passed == [*"abcdefgh"[:PATIENCE], None, None, None]
    assert line.next(lambda _: True) == "large"
    assert line.next(lambda item: item != "i") == "j", "the next head has its own patience"


def test_leaving_and_coming_back():
    line = WaitingLine[str]()
    line.join("ab")
    line.leave("a")
    line.return_to_front("z")
    assert list(line) == ["z", "b"] and len(line) == 2
