"""Continuations of the longest suffixes seen so far in one lane's prompt and output.

Knows token ids. Does not know the target, other lanes, or any text outside the lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from .best_first import Path
from .native_tables import NativeNgrams, mix_library
from .protocol import DraftContext, StepRecord
from .source import Evidence

#: lengths of the suffixes that are looked up, longest first
ORDERS = (8, 5, 3, 2, 1)
#: a continuation loses this factor whenever the same suffix is continued once more: recent ones count for more
RECENCY = 0.8
#: different continuations kept per suffix
MAX_CONTINUATIONS = 8
#: kinds of evidence per order: seen once; always the same continuation; several continuations
KINDS = 3

#: continuations of one suffix: the token itself when seen once, else the evidence they are, since that is read more
#: often than written
Continuations = int | Evidence


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
        for index, order in enumerate(ORDERS):
            for end in range(max(order, offset), len(history)):
                _count(self.tables[index], index * KINDS, hash(history[end - order : end]), history[end])
        self.tail = history[-ORDERS[0] :]
        self.seen += len(tokens)

    def evidence(self, path: Path) -> list[Evidence]:
        """What followed every suffix of tail + path that was seen before, longest first."""
        window, tables = self.tail + path, self.tables
        length = len(window)
        found: list[Evidence] = []
        for index, order in _SHORT_FIRST:
            if order > length:
                break
            known = tables[index].get(hash(window[length - order :]))
            if known is None:
                break  # what was not seen is no end of a longer suffix that was
            found.append(Evidence(index * KINDS, {known: 1.0}, 1.0) if isinstance(known, int) else known)
        found.reverse()
        return found


#: what followed each suffix, in C where there is a compiler
NgramTable = NgramTrie | NativeNgrams

_SHORT_FIRST = tuple(reversed([*enumerate(ORDERS)]))
_WEIGHT = itemgetter(1)


def _count(table: dict[int, Continuations], first_kind: int, suffix: int, token: int) -> None:
    known = table.get(suffix)
    if known is None:
        table[suffix] = token
        return
    weights = {known: 1.0} if isinstance(known, int) else known.weights
    faded = {other: weight * RECENCY for other, weight in weights.items()}
    faded[token] = faded.get(token, 0.0) + 1.0
    if len(faded) > 1:
        faded = dict(sorted(faded.items(), key=_WEIGHT, reverse=True))
        if len(faded) > MAX_CONTINUATIONS:
            faded.popitem()
    total = 0.0
    for weight in faded.values():  # one by one: `sum` rounds as it likes, and the table in C has the same numbers
        total += weight
    table[suffix] = Evidence(first_kind + (1 if len(faded) == 1 else 2), faded, total)


def _starting_trust() -> tuple[float, ...]:
    """Longer suffixes are believed more, and so are those that were always continued alike."""
    trust: list[float] = []
    for order in ORDERS:
        longer = 1.0 - 0.75 / order**0.5
        trust += [0.8 * longer, longer, 0.9 * longer]
    return tuple(trust)


class NgramSource:
    """Says what followed the current suffixes before, in this lane: one piece of evidence per suffix length.

    Blended from long to short this is prediction by partial matching (Cleary and Witten 1984) with learned escapes; as
    a drafter it is prompt lookup (Saxena 2023) with every match at once instead of one.
    """

    name = "ngram"
    feature_layers: tuple[int, ...] = ()
    trust = _starting_trust()

    def start(self, context: DraftContext) -> NgramTable:
        """Reads the prompt: the one call whose cost grows with it."""
        library = mix_library()
        table = NgramTrie() if library is None else NativeNgrams(library, ORDERS, RECENCY)
        table.extend(context.tokens)
        return table

    def native_table(self, state: NgramTable) -> NativeNgrams | None:
        """What `evidence` reads, if it is a table of C."""
        return state if isinstance(state, NativeNgrams) else None

    def begin(self, states: Sequence[NgramTable], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Reads the tokens committed since the last step."""
        for table, context in zip(states, contexts, strict=True):
            table.extend(context.tokens[table.seen :])

    def evidence(self, state: NgramTable, path: Path) -> list[Evidence]:
        """The continuations of every suffix of the path."""
        return state.evidence(path)

    def absorb(self, states: Sequence[NgramTable], records: Sequence[StepRecord]) -> None:
        """Nothing: committed tokens arrive through `begin`, and rejected ones were never written."""
