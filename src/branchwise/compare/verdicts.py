"""From statements that numbers can contradict to a verdict on a claim. Knows no model and no claim.

A claim is taken apart twice: into what it *says*, and into what should be found *instead* (or in addition). Both are
lists of checks, each decided by a measurement:

    says     all hold                              confirmed
             some hold, and all of instead hold    corrected
             none hold, and all of instead hold    refuted
    else                                           undecided
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["confirmed", "corrected", "refuted", "undecided"]


@dataclass(frozen=True)
class Check:
    """One statement and the numbers that decide it.

    Attributes:
        states: the statement, true or false.
        measured: the numbers, with units.
        holds: whether they bear it out.
    """

    states: str
    measured: str
    holds: bool


def decide(says: Sequence[Check], instead: Sequence[Check]) -> Verdict:
    """The verdict, as above.

    Raises:
        ValueError: a claim that says nothing can only be confirmed.
    """
    if not says:
        raise ValueError("a claim needs at least one check of what it says")
    held = sum(check.holds for check in says)
    if held == len(says):
        return "confirmed"
    if not instead or not all(check.holds for check in instead):
        return "undecided"
    return "corrected" if held else "refuted"
