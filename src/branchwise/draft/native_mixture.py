"""`mixture.py` in C (`native_mix/`): the same trees from the same evidence, and the same lessons, to the last bit.

Tables of C are read there; every other source is asked by a call back into Python. Knows addresses and who is called
what; a lane under a grammar is grown in Python, from the same tables.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from ..tree import TokenTree
from ..verify.proposal import DraftTree
from .best_first import LEAST_SHARE, Path, check_budget
from .calibration import BUCKETS
from .mixture import CRUMB, LEARNED_DEPTH, LEAST_LEARNED, MixedState, Mixture, Voice
from .native_tables import ASK, TOLD, NativeTable, address, addresses, mix_library, numbers
from .protocol import DraftContext
from .source import CandidateSource, Evidence, SourceState

_FAILED = -1
#: evidence of so many tokens is told as it is
_FEW = 16


class _Mixture(ctypes.Structure):
    """`mixture` in mixture.h, field by field; so are the others."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("trust", "trust_hits", "trust_trials", "claimed", "hits", "ratio")),
        ("buckets", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("trust_memory", "unseen", "claim_memory")),
        *((name, ctypes.c_double) for name in ("crumb", "least_learned", "least_share")),
    )


class _Voice(ctypes.Structure):
    _fields_ = (("form", ctypes.c_int64), ("first_kind", ctypes.c_int64), ("of", ctypes.c_void_p))


class _Told(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("kinds", "counts", "totals", "weights", "tokens"))


@dataclass
class _Telling:
    """One source's evidence at one node, where C reads it.

    Attributes:
        ask: for the evidence below a path.
        told: the addresses.
        parts: what lies there.
    """

    ask: Callable[[SourceState, Path], Sequence[Evidence]]
    told: _Told = field(default_factory=_Told)
    parts: tuple[array[int] | array[float], ...] = ()

    def tell(self, found: Sequence[Evidence], crumb: float, learned: int | None) -> int:
        """Takes evidence; the number of pieces.

        Args:
            found: a source's.
            crumb: weights below this share of a total are left out, since the blend would stop there.
            learned: but that of this token.
        """
        kinds, counts, weights, tokens = array("q"), array("q"), array("d"), array("q")
        for kind, named, total in found:
            count, least = len(named), crumb * total
            if count > _FEW:
                count = sum(1 for _ in takewhile(least.__le__, map(float, named.values())))
            tokens.extend(islice(named, count))
            weights.extend(islice(named.values(), count))
            if count < len(named) and learned is not None and 0 < named.get(learned, 0) < least:
                tokens.append(learned)
                weights.append(named[learned])
                count += 1
            kinds.append(kind)
            counts.append(count)
        self.parts = (kinds, counts, array("d", [e[2] for e in found]), weights, tokens)
        told = self.told
        told.kinds, told.counts, told.totals, told.weights, told.tokens = addresses(*self.parts)
        return len(found)


@dataclass
class _Heard:
    """Who speaks in one lane, in some of its steps.

    Attributes:
        voices: the sources; one that has a table and knows more comes twice.
        tellings: of those that Python asks, by place.
        tables: those that C reads; they must live as long as it may.
        native: the voices as C knows them.
    """

    voices: list[Voice]
    tellings: dict[int, _Telling]
    tables: list[NativeTable]
    native: ctypes.Array[_Voice]


class NativeMixture(Mixture):
    """`Mixture` that grows trees and learns in C.

    Args:
        library: the kernel.
        sources, costly, width: as for `Mixture`.
    """

    def __init__(
        self, library: ctypes.PyDLL, sources: Sequence[CandidateSource], costly: Sequence[int], width: int | None
    ) -> None:
        super().__init__(sources, costly, width)
        self._library = library
        trust, calibration = self.trust, self.calibration
        self._native = _Mixture(
            *addresses(*trust.counts, *calibration.counts),
            BUCKETS,
            trust.memory,
            trust.UNSEEN,
            calibration.memory,
            CRUMB,
            LEAST_LEARNED,
            LEAST_SHARE,
        )
        self._failure: BaseException | None = None

    def grow(self, state: MixedState, context: DraftContext, budget: int) -> DraftTree:
        """The best-first tree, see `Mixture.grow`."""
        if context.grammar is not None:
            return super().grow(state, context, budget)
        check_budget(budget)
        heard, tail = self._heard(state), numbers(state.tail)
        tokens, parents, names = (array("q", bytes(8 * budget)) for _ in range(3))
        scores = array("d", bytes(8 * budget))
        tokens[0], parents[0], scores[0] = context.tokens[-1], -1, 1.0
        paths: dict[int, Path] = {0: ()}

        def path_of(node: int) -> Path:
            if node not in paths:
                paths[node] = (*path_of(parents[node]), tokens[node])
            return paths[node]

        nodes = self._library.mix_grow(
            ctypes.byref(self._native),
            heard.native,
            len(heard.voices),
            address(tail),
            len(tail),
            budget,
            -1 if context.max_depth is None else context.max_depth,
            context.vocab_size,
            -1 if self.width is None else self.width,
            self._asking(state, heard, path_of, None),
            *addresses(tokens, parents, scores, names),
        )
        self._check(nodes == _FAILED)
        tree = TokenTree(tokens[:nodes], parents[:nodes])
        sources = [heard.voices[voice].source.name for voice in names[1:nodes]]
        return DraftTree.deterministic(tree, sources, scores[1:nodes])

    def learn(self, state: MixedState, tokens: Sequence[int]) -> None:
        """Learns what the evidence along ``tokens`` was worth, see `Mixture.learn`."""
        heard, tail, learned = self._heard(state), numbers(state.tail), numbers(tokens[:LEARNED_DEPTH])
        failed = self._library.mix_learn(
            ctypes.byref(self._native),
            heard.native,
            len(heard.voices),
            address(tail),
            len(tail),
            address(learned),
            len(learned),
            self._asking(state, heard, lambda depth: tuple(learned[:depth]), learned),
        )
        self._check(bool(failed))

    def _heard(self, state: MixedState) -> _Heard:
        speaking = [voice for voice in self.voices if state.asked or not voice.costs]
        more = {voice.index for voice in speaking if _knows_more(voice.source, state.sources[voice.index])}
        known = state.heard.get((state.asked, *more))
        if known is None:
            known = state.heard[state.asked, *more] = _hear(state, speaking, more)
        return known

    def _asking(
        self, state: MixedState, heard: _Heard, path_of: Callable[[int], Path], learned: Sequence[int] | None
    ) -> Callable[[int, int, float], int]:
        """How C asks the sources that it cannot read; ``learned``: the token behind every node, if that is the aim."""
        if not heard.tellings:
            return _NOBODY

        def ask(place: int, node: int, crumb: float) -> int:
            try:
                telling = heard.tellings[place]
                found = telling.ask(state.sources[heard.voices[place].index], path_of(node))
                token = None if learned is None else learned[node]
                return telling.tell(found, crumb, token) if found else 0
            except BaseException as error:  # there is no way through C: it is raised again behind it
                self._failure = error
                return _FAILED

        return ASK(ask)

    def _check(self, failed: bool) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if failed:
            raise MemoryError("no memory for a draft tree")


def _hear(state: MixedState, speaking: Sequence[Voice], more: Collection[int]) -> _Heard:
    heard = _Heard([], {}, [], (_Voice * (len(speaking) + len(more)))())

    def add(voice: Voice, form: int, of: int) -> None:
        heard.native[len(heard.voices)] = _Voice(form, voice.first_kind, of)
        heard.voices.append(voice)

    def add_asked(voice: Voice, ask: Callable[[SourceState, Path], Sequence[Evidence]]) -> None:
        telling = heard.tellings[len(heard.voices)] = _Telling(ask)
        add(voice, TOLD, ctypes.addressof(telling.told))

    for voice in speaking:
        table = _native_table(voice.source, state.sources[voice.index])
        if table is None:
            add_asked(voice, voice.source.evidence)
            continue
        heard.tables.append(table)
        add(voice, table.form, table.handle)
        if voice.index in more:
            # who has `knows_more` has this, too; neither is part of the protocol
            add_asked(voice, voice.source.more_evidence)  # type: ignore[attr-defined]
    return heard


def _knows_more(source: CandidateSource, state: SourceState) -> bool:
    """Whether a source with a table of C has more to say in this step."""
    return hasattr(source, "knows_more") and bool(source.knows_more(state))


def _native_table(source: CandidateSource, state: SourceState) -> NativeTable | None:
    """What a source reads its evidence from, if that is a table of C; see `CandidateSource`."""
    return source.native_table(state) if hasattr(source, "native_table") else None


@ASK
def _NOBODY(place: int, node: int, crumb: float) -> int:
    return _FAILED


def mixture_of(sources: Sequence[CandidateSource], costly: Sequence[int], width: int | None) -> Mixture:
    """The mixture in C where that can be compiled, and some source has a table of C; else the one in Python.

    Asking Python at every node takes longer than what is left to do in C.
    """
    library = mix_library() if any(hasattr(source, "native_table") for source in sources) else None
    return Mixture(sources, costly, width) if library is None else NativeMixture(library, sources, costly, width)
