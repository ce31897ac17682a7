"""Continuations of the longest suffixes seen so far in one lane's prompt and output.

Knows token ids. Does not know the target, other lanes, or any text outside the lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .best_first import Path
from .interpolation import TrustWeights
from .protocol import DraftContext, StepRecord
from .source import Claim

#: lengths of the suffixes that are looked up, longest first
ORDERS = (12, 8, 6, 4, 3, 2, 1)
#: a continuation loses this factor whenever the same suffix is continued once more: recent ones count for more
RECENCY = 0.8
#: different continuations kept per suffix
MAX_CONTINUATIONS = 8
#: kinds of evidence per order: seen once; always the same continuation; several continuations
KINDS = 3
#: an estimate below this is not worth a heap entry
LEAST_ESTIMATE = 0.004

#: continuations of one suffix: the token itself when seen once, else a weight per token
Continuations = int | dict[int, float]


@dataclass
class NgramTrie:
    """What followed each suffix of up to ``max(ORDERS)`` tokens, in one lane.

    One table per order, keyed by the hash of the suffix (64 bits: a collision costs a poor guess and nothing else). A
    token costs one update per order when it arrives, and no history is ever scanned again.
    """

    tables: list[dict[int, Continuations]] = field(default_factory=lambda: [{} for _ in ORDERS])
    tail: tuple[int, ...] = ()
    seen: int = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in tokens that follow those seen so far."""
        history = (*self.tail, *tokens)
        offset = len(self.tail)
        for order, table in zip(ORDERS, self.tables, strict=True):
            for end in range(max(order, offset), len(history)):
                _count(table, hash(history[end - order : end]), history[end])
        self.tail = history[-ORDERS[0] :]
        self.seen += len(tokens)

    def levels(self, path: Path) -> list[tuple[int, Continuations]]:
        """Kind and continuations of every suffix of tail + path that was seen before, longest first."""
        window = (self.tail + path)[-ORDERS[0] :]
        found: list[tuple[int, Continuations]] = []
        for index, order in enumerate(ORDERS):
            if order <= len(window):
                continuations = self.tables[index].get(hash(window[-order:]))
                if continuations is not None:
                    if isinstance(continuations, int):
                        found.append((index * KINDS, continuations))
                    else:
                        found.append((index * KINDS + 1 + (len(continuations) > 1), continuations))
        return found


def _count(table: dict[int, Continuations], suffix: int, token: int) -> None:
    known = table.get(suffix)
    if known is None:
        table[suffix] = token
        return
    if isinstance(known, int):
        known = table[suffix] = {known: 1.0}
    for other in known:
        known[other] *= RECENCY
    known[token] = known.get(token, 0.0) + 1.0
    if len(known) > MAX_CONTINUATIONS:
        del known[min(known, key=known.__getitem__)]


def _prior() -> list[float]:
    """Starting trust: longer suffixes, repeated and unanimous ones are believed more."""
    prior = []
    for order in ORDERS:
        longer = 1.0 - 0.75 / order**0.5
        prior += [0.8 * longer, longer, 0.9 * longer]
    return prior


class NgramSource:
    """Proposes what followed the current suffixes before; long matches first, shorter ones with what trust they leave.

    The blend over suffix lengths is that of prediction by partial matching (Cleary and Witten 1984), with trust learned
    online (see `TrustWeights`) instead of counted escapes. The trie is the lane's own; the trust is shared by all lanes
    and kept for as long as the source is.
    """

    name = "ngram"
    feature_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._trust = TrustWeights(_prior())

    def start(self, context: DraftContext) -> NgramTrie:
        """Reads the prompt: the one call whose cost grows with it."""
        trie = NgramTrie()
        trie.extend(context.tokens)
        return trie

    def begin(self, states: Sequence[NgramTrie], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Reads the tokens committed since the last step."""
        for trie, context in zip(states, contexts, strict=True):
            trie.extend(context.tokens[trie.seen :])

    def expand(self, state: NgramTrie, path: Path) -> list[Claim]:
        """Continuations of all suffixes of the path, blended."""
        estimates: dict[int, float] = {}
        left = 1.0
        weights = self._trust.weights
        for kind, continuations in state.levels(path):
            trusted = left * weights[kind]
            if isinstance(continuations, int):
                estimates[continuations] = estimates.get(continuations, 0.0) + trusted
            else:
                scale = trusted / sum(continuations.values())
                for token, weight in continuations.items():
                    estimates[token] = estimates.get(token, 0.0) + scale * weight
            left -= trusted
            if left < LEAST_ESTIMATE:
                break
        return [claim for claim in estimates.items() if claim[1] >= LEAST_ESTIMATE]

    def learn(self, state: NgramTrie, path: Path, token: int) -> None:
        """Trusts the suffix lengths that foresaw ``token`` a little more, the others a little less."""
        levels = []
        for kind, continuations in state.levels(path):
            if isinstance(continuations, int):
                share = float(continuations == token)
            else:
                share = continuations.get(token, 0.0) / sum(continuations.values())
            levels.append((kind, share))
        self._trust.learn(levels)

    def absorb(self, states: Sequence[NgramTrie], records: Sequence[StepRecord]) -> None:
        """Nothing: committed tokens arrive through `begin`, and rejected ones were never written."""
