"""SpecInfer's multi-round rule: children drawn with replacement, duplicates kept as rounds of their own.

The walk is `rejection`'s, because the draft says how each child was drawn and the update of the draft's law follows
from that. The name is kept apart for drafts that are meant to hold duplicates: every copy of a token needs its own
round, since each loss takes the draft's law off the target once more. Merging the copies would be biased.
"""

from __future__ import annotations

from .rejection import Rejection


class MultiRound(Rejection):
    """Rejection over rounds, duplicates included (SpecInfer, Miao et al. 2024, algorithm 2)."""

    name = "multiround"
