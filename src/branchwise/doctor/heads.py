"""Draft heads that drafter "auto" takes for their targets."""

from __future__ import annotations

from ..draft.shipped import VARIABLE, list_heads
from .finding import Finding


def draft_heads() -> Finding:
    """Which there are, and for what; "auto" does without where there is none."""
    says = [f"{head.name} ({head.kind}, {head.size / 1e6:.1f} MB) for {head.target}" for head in list_heads()]
    if not says:
        return Finding("draft heads", "absent", f"none: drafter auto is n-grams and recycling (${VARIABLE} names more)")
    return Finding("draft heads", "ok", f"{', '.join(says)}: part of drafter auto with that target")
