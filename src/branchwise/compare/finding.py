"""What one measurement says about one claim. The hand-off from the measurements to the report."""

from __future__ import annotations

from dataclasses import dataclass

from .exhibits import Exhibit
from .verdicts import Check, Verdict, decide


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        headline: the numbers that settle it, in one sentence.
        says: checks of what the claim says.
        instead: checks of what was expected instead.
        how: how it was measured.
        exhibits: what is shown beside it.
    """

    headline: str
    says: tuple[Check, ...]
    instead: tuple[Check, ...]
    how: str
    exhibits: tuple[Exhibit, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """As the checks have it."""
        return decide(self.says, self.instead)
