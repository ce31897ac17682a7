"""Verdicts follow from checks, and every claim's verdict follows from its numbers: made-up ones turn it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import compare_numbers as made
from branchwise.compare import best_branch, bound, cost, inputs, logits, masks, parallel, reuse, rows, shares, steps
from branchwise.compare.claims import CLAIMS
from branchwise.compare.finding import Finding
from branchwise.compare.report import SETTLED_BY, row_record
from branchwise.compare.verdicts import Check, decide

pytestmark = pytest.mark.core

YES, NO = Check("it is so", "1", True), Check("it is so", "0", False)


@pytest.mark.parametrize(
    ("says", "instead", "verdict"),
    [
        ([YES, YES], [], "confirmed"),
        ([YES], [NO], "confirmed"),  # the claim holds, whatever was expected
        ([YES, NO], [YES], "corrected"),
        ([NO, NO], [YES, YES], "refuted"),
        ([YES, NO], [YES, NO], "undecided"),
        ([NO], [], "undecided"),  # not the claim, and nothing else either
    ],
)
def test_checks_decide(says: list[Check], instead: list[Check], verdict: str) -> None:
    assert decide(says, instead) == verdict


def test_a_claim_that_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one check"):
        decide([], [YES])


def test_every_claim_is_settled_by_a_measurement() -> None:
    assert [claim.key for claim in CLAIMS] == list(SETTLED_BY)
    assert len(CLAIMS) == 14


def test_the_expected_numbers_give_the_expected_verdicts() -> None:
    found = made.findings()
    assert {claim.key: found[claim.key].verdict for claim in CLAIMS} == {c.key: c.expected for c in CLAIMS}


def _square(size: int, visible: Callable[[int, int], bool]) -> tuple[tuple[bool, ...], ...]:
    return tuple(tuple(visible(i, j) for j in range(size)) for i in range(size))


#: claim, measurement, what it says, numbers that contradict, the verdict they must give
CONTRADICTIONS: list[tuple[str, Any, Callable[[Any], Finding], dict[str, Any], str]] = [
    ("inputs", made.INPUTS, inputs.finding, {"rounding": 1e-9}, "undecided"),
    ("inputs", made.INPUTS, inputs.finding, {"graph_refusal": ""}, "undecided"),
    ("parallel", made.PARALLEL, parallel.finding, {"chain_scored": 1}, "confirmed"),
    ("parallel", made.PARALLEL, parallel.finding, {"chain_difference": 0.5}, "confirmed"),
    ("parallel", made.PARALLEL, parallel.finding, {"tree_difference": 0.5}, "undecided"),
    # strictly causal in the literal sense: the diagonal is hidden; and the transposed mask
    ("standard_mask", made.MASKS, masks.standard_finding, {"chain": _square(3, lambda i, j: j < i)}, "undecided"),
    ("standard_mask", made.MASKS, masks.standard_finding, {"chain": _square(3, lambda i, j: j >= i)}, "undecided"),
    # a node that sees its sibling; and a mask across branches that would do no harm
    ("tree_mask", made.MASKS, masks.tree_finding, {"tree": _square(4, lambda i, j: True), "crossed": 0.0}, "confirmed"),
    ("tree_mask", made.MASKS, masks.tree_finding, {"crossed": 0.0, "crossed_exchanged": 0.0}, "undecided"),
    ("siblings", made.MASKS, masks.sibling_finding, {"exchanged": 0.2}, "undecided"),
    ("siblings", made.MASKS, masks.sibling_finding, {"tree": _square(4, lambda i, j: True)}, "undecided"),
    ("siblings", made.MASKS, masks.sibling_finding, {"tree": _square(4, lambda i, j: i == j)}, "undecided"),
    ("cost", made.COST, cost.finding, {"by_branches": {1: 20.0, 32: 40.0}}, "undecided"),
    ("cost", made.COST, cost.finding, {"by_nodes": {1: 10.0, 32: 11.0, 64: 12.0}}, "undecided"),
    ("cost", made.COST, cost.finding, {"trie_ms": 80.0}, "undecided"),
    ("steps", made.STEPS, steps.finding, {"verified": (steps.Verified(2, 4, 4), steps.Verified(4, 4, 8))}, "confirmed"),
    ("steps", made.STEPS, steps.finding, {"verified": (steps.Verified(8, 8, 2),)}, "undecided"),
    ("bound", made.BOUND, bound.finding, {"right": {4: bound.Right(4, 3.9, 3.0)}}, "confirmed"),
    ("bound", made.BOUND, bound.finding, {"right": {4: bound.Right(6, 5.9, 3.0)}}, "undecided"),
    ("bound", made.BOUND, bound.finding, {"right": {4: bound.Right(5, 4.9, 5.5)}}, "undecided"),
    ("cache", made.ROWS, rows.finding, {"shared": 28}, "undecided"),
    ("cache", made.ROWS, rows.finding, {"tree": (rows.Step(9, 3, 29, 23),)}, "undecided"),
    ("reuse", made.REUSE, reuse.finding, {"ngrams": reuse.Mode(3.0, 7.0, 0.2, 20.0, 16)}, "confirmed"),
    ("reuse", made.REUSE, reuse.finding, {"reuse": made.REUSE.recompute}, "refuted"),
    ("reuse", made.REUSE, reuse.finding, {"agree": False}, "undecided"),
    ("logits", made.LOGITS, logits.finding, {"rows": 6}, "undecided"),
    ("logits", made.LOGITS, logits.finding, {"inner_stops": 0}, "undecided"),
    ("best_branch", made.BEST_BRANCH, best_branch.finding, {"naive": (best_branch.Enumerated("x", 0.0, 2.0),)},
     "confirmed"),
    ("best_branch", made.BEST_BRANCH, best_branch.finding, {"lossless": (best_branch.Enumerated("x", 0.1, 2.0),)},
     "undecided"),
    ("coupling", made.SHARES, shares.coupling_finding, {"wants_features": True}, "confirmed"),
    ("coupling", made.SHARES, shares.coupling_finding, {"tree_forwards": 4.0}, "undecided"),
    ("overhead", made.SHARES, shares.overhead_finding, {"tree": made.figures("tree", 9, 60, 0.02)}, "undecided"),
    ("overhead", made.SHARES, shares.overhead_finding, {"stock_difference": 0.5}, "undecided"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "measured", "finding", "changed", "verdict"), CONTRADICTIONS)
def test_numbers_that_contradict_turn_the_verdict(
    key: str, measured: Any, finding: Callable[[Any], Finding], changed: dict[str, Any], verdict: str
) -> None:
    claim = next(claim for claim in CLAIMS if claim.key == key)
    found = finding(replace(measured, **changed))
    record = row_record(claim, found, 1.0)
    assert found.verdict == verdict != claim.expected
    assert record["as_expected"] is False
    # the numbers themselves are in the row
    assert record["checks"] != row_record(claim, finding(measured), 1.0)["checks"]
