"""The tables for a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

import compare_numbers as made
from branchwise.compare import cost
from branchwise.compare.claims import CLAIMS
from branchwise.compare.terminal import PLAIN_WIDTH, print_comparison

pytestmark = pytest.mark.core


def printed(**changes: object) -> str:
    stream = io.StringIO()
    # as `record` takes them
    print_comparison(made.record(**changes), stream)  # type: ignore[arg-type]
    return stream.getvalue()


def test_every_claim_and_method_is_listed() -> None:
    text = printed()
    assert all(claim.topic in text for claim in CLAIMS)
    assert "chain, 9 nodes" in text and "tree, 9 nodes" in text
    assert text.count("✓ confirmed") == 5 and text.count("≈ corrected") == 6 and text.count("✗ refuted") == 3
    assert max(map(len, text.splitlines())) <= PLAIN_WIDTH


def test_numbers_to_blame_are_named() -> None:
    text = " ".join(printed(cost=cost.finding(replace(made.COST, trie_ms=80.0)), without="reuse").split())
    assert "! not as expected" in text
    assert "Expected confirmed, found undecided." in text
    assert "80.00 ms for 37" in text
    assert "? not measured" in text
