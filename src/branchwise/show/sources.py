"""How drafters are told apart in drawings: a colour slot and two letters for each name.

The colours themselves are in ``assets/tree.css`` (``--bw-source-0`` ...) and, for renderers without style sheets, in
`COLOURS`. ``assets/tree.js`` holds the same table.
"""

from __future__ import annotations

from dataclasses import dataclass

#: fill and ink of each slot on a light page: Okabe and Ito's palette, which colour-blind readers can tell apart
COLOURS = (
    ("#0072b2", "#ffffff"),
    ("#e69f00", "#1b1f24"),
    ("#009e73", "#ffffff"),
    ("#cc79a7", "#1b1f24"),
    ("#d55e00", "#ffffff"),
    ("#56b4e9", "#1b1f24"),
    ("#f0e442", "#1b1f24"),
    ("#6e7781", "#ffffff"),
)

_KNOWN = {
    "ngram": (0, "NG"),
    "recycling": (1, "RE"),
    "suffix": (2, "SU"),
    "model": (3, "MO"),
    "eagle": (4, "EA"),
    "medusa": (5, "ME"),
    "block": (6, "BL"),
    "early_exit": (7, "EX"),
}


@dataclass(frozen=True)
class Badge:
    """A drafter's mark: colour slot and letters."""

    slot: int
    letters: str


def badge(source: str) -> Badge:
    """The mark of a drafter; one not known here gets a slot by its letters."""
    if source in _KNOWN:
        return Badge(*_KNOWN[source])
    return Badge(sum(map(ord, source)) % len(COLOURS), source[:2].upper())
