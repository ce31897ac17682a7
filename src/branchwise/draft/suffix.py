"""Continuations of the longest suffixes seen before: in this lane, and in the texts of earlier requests.

Knows token ids. A lane's own text is in a suffix automaton, texts of finished lanes are in a store that all lanes
share. Does not know the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

from .best_first import Path
from .block_text import NONE
from .mixed import MixedDrafter
from .native_tables import NativeSuffixes, mix_library
from .protocol import DraftContext, StepRecord
from .source import Evidence
from .suffix_automaton import MAX_CONTEXT, Place, SuffixAutomaton
from .suffix_store import MAX_MATCH, ORDERS, Match, SuffixStore

#: contexts of the lane's own text, continued in several ways, that have a say in one token; longest first
MAX_CONTEXTS = 3
#: classes of matches in the store that have a say in one token, longest first
MAX_CLASSES = 2
#: kinds of evidence per length: seen once; always the same continuation; several continuations
KINDS = 3
#: shortest length of every class of contexts of the lane's own text, and of matches in the store
OWN_LENGTHS = (1, 2, 3, 4, 6, 9, 16)
STORED_LENGTHS = (2, 4, 8, 16)


def _first_kinds(lengths: Sequence[int], longest: int, first: int) -> list[int]:
    """For every length up to ``longest`` the first kind of its class, the classes being numbered from ``first``."""
    classes = [sum(length >= shortest for shortest in lengths) - 1 for length in range(longest + 1)]
    return [first + KINDS * number for number in classes]


_OWN_KINDS = _first_kinds(OWN_LENGTHS, MAX_CONTEXT, 0)
_STORED_KINDS = _first_kinds(STORED_LENGTHS, MAX_MATCH, KINDS * len(OWN_LENGTHS))


def _starting_trust() -> tuple[float, ...]:
    """Longer contexts are believed more, and so are those that were always continued alike."""
    trust: list[float] = []
    for length in OWN_LENGTHS + STORED_LENGTHS:
        longer = 1.0 - 0.75 / length**0.5
        trust += [0.8 * longer, longer, 0.9 * longer]
    return tuple(trust)


class OwnText:
    """One lane's text in a suffix automaton, and the places of this step's readers."""

    def __init__(self) -> None:
        self._automaton = SuffixAutomaton()
        self._places: dict[Path, Place] = {(): self._automaton.place()}

    def __len__(self) -> int:
        return len(self._automaton)

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in tokens that follow those seen so far."""
        self._automaton.extend(tokens)
        self._places = {(): self._automaton.place()}

    def evidence(self, path: Path) -> list[Evidence]:
        """Continuations of every known context that ends with ``path``."""
        return [
            Evidence(_OWN_KINDS[length] + (2 if len(counts) > 1 else 0 if total == 1 else 1), counts, total)
            for length, counts, total in self._automaton.continuations(self._place(path), MAX_CONTEXTS)
        ]

    def _place(self, path: Path) -> Place:
        """The longest known context that ends with ``path``."""
        place = self._places.get(path)
        if place is None:
            place = self._places[path] = self._automaton.advance(self._place(path[:-1]), path[-1])
        return place

    def check_integrity(self) -> None:
        """See `SuffixAutomaton.check_integrity`."""
        self._automaton.check_integrity()


def _own_text() -> OwnText | NativeSuffixes:
    """In C where there is a compiler."""
    library = mix_library()
    return OwnText() if library is None else NativeSuffixes(library, MAX_CONTEXT, MAX_CONTEXTS, _OWN_KINDS)


@dataclass
class SuffixLane:
    """One lane: its text, and what was found below the root in this step.

    Attributes:
        context: the lane's own; its tokens are added to the store in the end.
        prompt_length: tokens of the prompt.
        own: prompt and output.
        matches: in the store, by path.
    """

    context: DraftContext
    prompt_length: int
    own: OwnText | NativeSuffixes = field(default_factory=_own_text)
    matches: dict[Path, list[Match]] = field(default_factory=lambda: {(): []})


class SuffixSource:
    """Says what followed the current suffixes before, as often as it did: SuffixDecoding (Oliaro et al. 2024).

    As there, a lane's own text and the texts of earlier requests are searched apart, and a longer match is followed
    deeper: the longer a context, the more it is trusted, and the mixer follows what is likely. How much longer ones are
    worth is learned, where the paper fixes a depth of so many times the match length. Beyond the paper: contexts of
    several lengths are blended, and the store forgets what is not used.

    Args:
        store: texts of earlier requests, which the source also adds to; None to know the lane's own text only.
    """

    name = "suffix"
    feature_layers: tuple[int, ...] = ()
    trust = _starting_trust()

    def __init__(self, store: SuffixStore | None = None) -> None:
        self.store = store

    def start(self, context: DraftContext) -> SuffixLane:
        """Reads the prompt: the one call whose cost grows with it.

        Raises:
            ValueError: the store holds tokens of another vocabulary.
        """
        if self.store is not None:
            self.store.claim(context.vocab_size)
        lane = SuffixLane(context, len(context.tokens))
        lane.own.extend(context.tokens)
        return lane

    def native_table(self, state: SuffixLane) -> NativeSuffixes | None:
        """The lane's own text, if it is in a table of C."""
        return state.own if isinstance(state.own, NativeSuffixes) else None

    def knows_more(self, state: SuffixLane) -> bool:
        """Whether there is evidence beside that of the lane's own text in this step."""
        return bool(state.matches[()])

    def more_evidence(self, state: SuffixLane, path: Path) -> list[Evidence]:
        """What the store says, if it says anything in this step."""
        return _stored_evidence(self.store, state, path) if self.store is not None and self.knows_more(state) else []

    def begin(self, states: Sequence[SuffixLane], contexts: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        """Reads the tokens committed since the last step."""
        for lane, context in zip(states, contexts, strict=True):
            lane.context = context
            lane.own.extend(context.tokens[len(lane.own) :])
            lane.matches = {(): self.store.matches(context.tokens) if self.store is not None else []}

    def evidence(self, state: SuffixLane, path: Path) -> list[Evidence]:
        """Continuations of every known context of the path."""
        return [*state.own.evidence(path), *self.more_evidence(state, path)]

    def absorb(self, states: Sequence[SuffixLane], records: Sequence[StepRecord]) -> None:
        """Tells the store which of its matches were right. Committed tokens arrive through `begin`."""
        if self.store is None:
            return
        text = self.store.text
        for lane, record in zip(states, records, strict=True):
            tree, verdict = record.draft.tree, record.verdict
            tokens = (*(tree.tokens[node] for node in verdict.path[1:]), verdict.bonus)
            self.store.use(
                match.position
                for depth, token in enumerate(tokens)
                for match in lane.matches.get(tokens[:depth], ())
                if text.tokens[text.after(match.position)] == token
            )

    def finish(self, state: SuffixLane) -> None:
        """The lane ends: its output goes to the store."""
        tokens = state.context.tokens
        if self.store is not None and len(tokens) > state.prompt_length:
            # with the end of the prompt, by which the beginning of the output is found
            self.store.add(tokens[max(0, state.prompt_length - ORDERS[0]) :])


class SuffixDrafter(MixedDrafter):
    """The suffix source as a drafter of its own. Keep it, and the next request knows the texts of the earlier ones.

    Args:
        store: what is known of earlier requests, to be saved when the user likes; a new one by default.
        width: most children of a node; 1 drafts chains.
    """

    def __init__(self, store: SuffixStore | None = None, width: int | None = None) -> None:
        self.store = SuffixStore() if store is None else store
        super().__init__([SuffixSource(self.store)], name="suffix", width=width)


def _stored_evidence(store: SuffixStore, lane: SuffixLane, path: Path) -> list[Evidence]:
    """One piece per class of match lengths."""
    tokens, after = store.text.tokens, store.text.after
    classes: dict[int, dict[int, int]] = {}  # first kind -> counts; longest matches come first
    for position, length in _matches(store, lane, path):
        counts = classes.setdefault(_STORED_KINDS[length], {})
        token = tokens[after(position)]
        counts[token] = counts.get(token, 0) + 1
    found = []
    for first_kind, counts in islice(classes.items(), MAX_CLASSES):
        if len(counts) > 1:
            counts = dict(sorted(counts.items(), key=itemgetter(1), reverse=True))
        total = sum(counts.values())
        kind = first_kind + (0 if total == 1 else 1 if len(counts) == 1 else 2)
        found.append(Evidence(kind, counts, total))
    return found


def _matches(store: SuffixStore, lane: SuffixLane, path: Path) -> list[Match]:
    """Matches of the lane's text that are continued by ``path``."""
    matches = lane.matches.get(path)
    if matches is None:
        matches = lane.matches[path] = []
        tokens, after = store.text.tokens, store.text.after
        for position, length in _matches(store, lane, path[:-1]):
            position = after(position)
            if tokens[position] == path[-1] and after(position) != NONE:
                matches.append(Match(position, min(length + 1, MAX_MATCH)))
    return matches
