"""Prompts that begin alike are read once: rows of finished prompts are kept and copied to later lanes.

Knows tokens, and snapshots as something a target can restore; knows no layer. Copied rows are bit for bit those that
were kept, so a reused prefix gives what the first reading gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ..cache import Snapshot

#: shared tokens below this are sooner read than looked after
LEAST_TOKENS = 32


@dataclass(frozen=True, eq=False)
class Prefix:
    """What was read once.

    Attributes:
        tokens: the tokens whose rows are held.
        snapshot: their keys and values.
        features: hidden states ``{layer: [n, h]}`` that the drafter wants of them.
    """

    tokens: tuple[int, ...]
    snapshot: Snapshot
    features: dict[int, Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of rows and features."""
        return self.snapshot.nbytes + sum(rows.numel() * rows.element_size() for rows in self.features.values())


@dataclass(frozen=True, eq=False)
class Reuse:
    """The first ``count`` tokens of a prefix that a new prompt shares."""

    prefix: Prefix
    count: int


class PrefixStore:
    """Prefixes, the least recently used dropped first.

    Args:
        limit_bytes: most bytes to hold; 0 keeps nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._entries: list[tuple[np.ndarray, Prefix]] = []  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, tokens: Sequence[int]) -> Reuse | None:
        """The longest usable beginning of ``tokens`` that is held; never all of them, since the last is the root."""
        wanted = np.asarray(tokens[:-1])
        best, best_at = None, -1
        for at, (held, prefix) in enumerate(self._entries):
            count = prefix.snapshot.reach(_common(held, wanted))
            if count >= LEAST_TOKENS and (best is None or count > best.count):
                best, best_at = Reuse(prefix, count), at
        if best is not None:
            self._entries.append(self._entries.pop(best_at))
        return best

    def wants(self, tokens: Sequence[int]) -> bool:
        """Whether keeping these tokens would add enough to what is held."""
        if not self.limit_bytes or len(tokens) < LEAST_TOKENS:
            return False
        wanted = np.asarray(tokens)
        return all(len(tokens) - _common(held, wanted) >= LEAST_TOKENS for held, _ in self._entries)

    def put(self, prefix: Prefix) -> None:
        """Keeps a prefix; what it continues is dropped, and what has not been used for longest, until it fits."""
        if prefix.nbytes > self.limit_bytes:
            return
        tokens = np.asarray(prefix.tokens)
        for held, other in list(self._entries):
            if _common(held, tokens) == len(held) and prefix.snapshot.reach(len(held)) == len(held):
                self._drop(other)
        while self._entries and self.nbytes + prefix.nbytes > self.limit_bytes:
            self._drop(self._entries[0][1])
        self._entries.append((tokens, prefix))
        self.nbytes += prefix.nbytes

    def _drop(self, prefix: Prefix) -> None:
        self._entries = [entry for entry in self._entries if entry[1] is not prefix]
        self.nbytes -= prefix.nbytes


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Tokens until the first difference."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
