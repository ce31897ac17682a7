"""The tables of ngram.py, recycling.py and suffix.py in C (`native_mix/`): what may follow, found in a microsecond.

Knows handles and addresses. The arithmetic is in C, compiled on first use (`native.kernel`); where there is no compiler
the tables in Python serve, which say the same to the last bit.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ..native.kernel import load_kernel
from .common_tokens import CommonTokens
from .source import Evidence

MIX_SOURCES = Path(__file__).with_name("native_mix")
#: forms of a voice, as in mixture.h
NGRAMS, ADJACENCY, SUFFIXES, TOLD = range(4)
#: most pieces of evidence that one table gives at a node, and room for the tokens that they name together at first
_PIECES, _NAMED = 16, 256
_ADDRESS, _NUMBER, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
#: called by C with the number of a voice and of a node, and the least share that matters
ASK = ctypes.CFUNCTYPE(_NUMBER, _NUMBER, _NUMBER, _REAL)

_SIGNATURES = {
    "ngrams_new": (_ADDRESS, (_ADDRESS, _NUMBER, _REAL)),
    "ngrams_free": (None, (_ADDRESS,)),
    "ngrams_extend": (ctypes.c_int, (_ADDRESS, _ADDRESS, _NUMBER)),
    "adjacency_new": (_ADDRESS, (_NUMBER, _NUMBER)),
    "adjacency_free": (None, (_ADDRESS,)),
    "adjacency_common": (None, (_ADDRESS, _ADDRESS, _ADDRESS, _NUMBER, _REAL)),
    "adjacency_put": (ctypes.c_int, (_ADDRESS, _NUMBER, _ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _ADDRESS, _ADDRESS)),
    "suffixes_new": (_ADDRESS, (_NUMBER, _NUMBER, _ADDRESS)),
    "suffixes_free": (None, (_ADDRESS,)),
    "suffixes_extend": (ctypes.c_int, (_ADDRESS, _ADDRESS, _NUMBER)),
    "suffixes_check": (_NUMBER, (_ADDRESS,)),
    "mix_grow": (_NUMBER, (*[_ADDRESS] * 2, _NUMBER, _ADDRESS, *[_NUMBER] * 5, ASK, *[_ADDRESS] * 4)),
    "mix_learn": (ctypes.c_int, (*[_ADDRESS] * 2, _NUMBER, _ADDRESS, _NUMBER, _ADDRESS, _NUMBER, ASK)),
    "mix_evidence": (_NUMBER, (_NUMBER, _ADDRESS, _ADDRESS, _NUMBER, _NUMBER, *[_ADDRESS] * 5)),
}


@cache
def mix_library() -> ctypes.PyDLL | None:
    """Compiles the kernel if need be, and loads it; None where that cannot be done.

    Its calls keep the interpreter's lock: they take microseconds, and no other thread may change a table meanwhile.
    """
    # without products fused with sums, so that the numbers are those of Python
    kernel = load_kernel(MIX_SOURCES / "mix.c", flags=("-ffp-contract=off",))
    if kernel.library is None:
        return None
    library = ctypes.PyDLL(kernel.library._name)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def numbers(values: Sequence[int]) -> array[int]:
    """64-bit integers, to be read by C."""
    return array("q", values)


def address(values: array[int] | array[float]) -> int:
    """Where they lie; they must not change their length while C looks."""
    return values.buffer_info()[0]


def addresses(*values: array[int] | array[float]) -> list[int]:
    """Where all of them lie."""
    return [address(one) for one in values]


class NativeTable:
    """A table of C, freed with this object.

    Attributes:
        form: which kind of table it is.
        handle: where it lies.
    """

    form: int
    #: how far back it looks
    reach: int

    def __init__(self, library: ctypes.PyDLL, handle: int | None, free: str) -> None:
        if handle is None:
            raise MemoryError("no memory for a table of draft candidates")
        self.handle = handle
        self._library = library
        weakref.finalize(self, getattr(library, free), handle)

    def evidence_after(self, tokens: Sequence[int]) -> list[Evidence]:
        """What it says about the token after ``tokens``."""
        newest_first = numbers(tokens[: -self.reach - 1 : -1])
        kinds, counts = array("q", bytes(8 * _PIECES)), array("q", bytes(8 * _PIECES))
        totals = array("d", bytes(8 * _PIECES))
        room, pieces = _NAMED // 2, -1
        while pieces < 0:
            room *= 2
            named, weights = array("q", bytes(8 * room)), array("d", bytes(8 * room))
            pieces = self._library.mix_evidence(
                self.form,
                self.handle,
                address(newest_first),
                len(newest_first),
                room,
                *addresses(kinds, counts, totals, named, weights),
            )
        found, at = [], 0
        for kind, count, total in zip(kinds[:pieces], counts, totals, strict=False):
            end = at + count
            found.append(Evidence(kind, dict(zip(named[at:end], weights[at:end], strict=True)), total))
            at = end
        return found


class NativeNgrams(NativeTable):
    """`ngram.NgramTrie` in C.

    Args:
        library: the kernel.
        orders: lengths of the suffixes that are looked up, longest first.
        recency: see ngram.py.
    """

    form = NGRAMS

    def __init__(self, library: ctypes.PyDLL, orders: Sequence[int], recency: float) -> None:
        lengths = numbers(orders)
        super().__init__(library, library.ngrams_new(address(lengths), len(lengths), recency), "ngrams_free")
        self.reach = orders[0]
        self.tail: tuple[int, ...] = ()
        self.seen = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in tokens that follow those seen so far."""
        fresh = numbers(tokens)
        if self._library.ngrams_extend(self.handle, address(fresh), len(fresh)):
            raise MemoryError("no memory for the n-grams of a text")
        self.tail = (*self.tail, *tokens[-self.reach :])[-self.reach :]
        self.seen += len(fresh)

    def evidence(self, path: tuple[int, ...]) -> list[Evidence]:
        """What followed every suffix of tail + path that was seen before, longest first."""
        return self.evidence_after(self.tail + path)


class NativeAdjacency(NativeTable):
    """`recycling.AdjacencyTable`'s rows in C.

    Args:
        library: the kernel.
        max_pairs: pairs of tokens kept.
        sureness: kinds of evidence per table.
    """

    form = ADJACENCY
    reach = 2

    def __init__(self, library: ctypes.PyDLL, max_pairs: int, sureness: int) -> None:
        super().__init__(library, library.adjacency_new(max_pairs, sureness), "adjacency_free")
        self.written = CommonTokens(2 * sureness)

    def put_tree(
        self, tokens: Sequence[int], parents: Sequence[int], before: int | None, likeliest: Tensor, shares: Tensor
    ) -> None:
        """Stores what the target ranked highest after every node of a tree; see `AdjacencyTable.put_tree`.

        Raises:
            ValueError: a share is no number.
        """
        likeliest, shares = likeliest.contiguous(), shares.to(torch.float32).contiguous()
        node_tokens, node_parents = numbers(tokens), numbers(parents)
        failed = self._library.adjacency_put(
            self.handle,
            len(tokens),
            address(node_tokens),
            address(node_parents),
            -1 if before is None else before,
            shares.shape[1],
            likeliest.data_ptr(),
            shares.data_ptr(),
        )
        if failed == 1:
            raise MemoryError("no memory for the rows of a table of draft candidates")
        if failed:
            raise ValueError("the target's logits hold a NaN; nothing can be recycled from them")

    def count(self, tokens: Sequence[int]) -> None:
        """Counts what the target wrote."""
        if self.written.count(tokens) and self.written.evidence is not None:
            _, weights, total = self.written.evidence
            common, counts = numbers(list(weights)), array("d", weights.values())
            self._library.adjacency_common(self.handle, address(common), address(counts), len(common), total)


#: what `suffixes_check` finds, by number
_FAULTS = (
    "",
    "there are too many states",
    "the last state does not spell the whole text",
    "the link of a state leads to no shorter one",
    "a move is not found again",
    "a move gets no longer",
    "a move leads past its shorter substrings",
    "a state that is counted has no count",
)


class NativeSuffixes(NativeTable):
    """`suffix_automaton.SuffixAutomaton` in C, and who reads it where.

    Args:
        library: the kernel.
        max_context: longest context whose continuations are counted.
        most: contexts that were continued in several ways and have a say in one token.
        kinds: first kind of evidence of a context of 0 to ``max_context`` tokens.
    """

    form = SUFFIXES
    reach = 1 << 30  # all of a path

    def __init__(self, library: ctypes.PyDLL, max_context: int, most: int, kinds: Sequence[int]) -> None:
        by_length = numbers(kinds)
        super().__init__(library, library.suffixes_new(max_context, most, address(by_length)), "suffixes_free")
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in tokens that follow those seen so far."""
        fresh = numbers(tokens)
        if self._library.suffixes_extend(self.handle, address(fresh), len(fresh)):
            raise MemoryError("no memory for the suffixes of a text")
        self._length += len(fresh)

    def evidence(self, path: tuple[int, ...]) -> list[Evidence]:
        """What followed the contexts that end with the path, longest first."""
        return self.evidence_after(path)

    def check_integrity(self) -> None:
        """Raises AssertionError when links, moves, lengths and counts do not fit together."""
        fault = self._library.suffixes_check(self.handle)
        assert not fault, _FAULTS[fault]
