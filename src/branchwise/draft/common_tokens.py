"""The tokens that the target writes most often, wherever. Knows counts only."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .source import Evidence

#: how many are proposed, after how many written tokens they are ranked again, and the factor all counts lose at each
#: ranking
COMMON_TOKENS = 32
COMMON_REFRESH = 32
COMMON_MEMORY = 0.99
#: a count below this is forgotten at the next ranking
COMMON_LEAST = 0.2


class CommonTokens:
    """Counts that fade.

    Args:
        kind: of the evidence that the commonest tokens are.

    Attributes:
        evidence: the commonest tokens, once there are any.
    """

    def __init__(self, kind: int) -> None:
        self.evidence: Evidence | None = None
        self._kind = kind
        self._written: dict[int, float] = {}
        self._written_since = 0

    def count(self, tokens: Sequence[int]) -> bool:
        """Counts what the target wrote, and every now and then ranks the commonest tokens anew: whether now."""
        for token in tokens:
            self._written[token] = self._written.get(token, 0.0) + 1.0
        self._written_since += len(tokens)
        if self._written_since < COMMON_REFRESH and self.evidence is not None:
            return False
        self._written_since = 0
        total = sum(self._written.values())
        best = heapq.nlargest(COMMON_TOKENS, self._written.items(), key=lambda item: item[1])
        self.evidence = Evidence(self._kind, dict(best), total)
        faded = ((token, count * COMMON_MEMORY) for token, count in self._written.items())
        self._written = {token: count for token, count in faded if count >= COMMON_LEAST}
        return True
