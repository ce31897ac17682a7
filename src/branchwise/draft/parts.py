"""What a drafter is made of, for people and records. Knows names only."""

from __future__ import annotations

from .mixed import MixedDrafter
from .protocol import Drafter


def drafter_parts(drafter: Drafter) -> tuple[str, ...]:
    """Names of the sources of a mixed drafter, else its own; a shipped head says which one it is."""
    parts = drafter.sources if isinstance(drafter, MixedDrafter) else (drafter,)
    return tuple(str(getattr(part, "label", part.name)) for part in parts)
