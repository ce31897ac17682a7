"""Which tokens a head can draft: the most frequent ones, so that its output layer stays small.

Every token it lacks is a sure rejection, so the share of the target's own tokens that it covers is what counts.
Knows counts; knows no model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .corpus import Corpus, count_tokens
from .shards import ANSWER

#: share of the target's tokens that a vocabulary chosen by itself covers on held-out answers, at least
WANTED_COVERAGE = 0.985
#: sizes that are tried
SIZES = (4096, 6144, 8192, 12288, 16384)
#: share of the answers' tokens among which levels below the first choose
DEEP_COVERAGE = 0.965
#: and how many those are: a multiple of this
DEEP_STEP = 512
#: a token of a prompt or a text counts as so much of one in an answer
FOREIGN_WEIGHT = 0.2


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The tokens, and how well they cover.

    Attributes:
        ids: int64 ``[D]`` target ids, the most useful first, or all of them in their own order; entry i is what the
            head's row i stands for.
        vocab_size: of the target.
        training_coverage, held_out_coverage: share of the answers' tokens that are in it.
        deep: levels of a draft below the first may choose from so many of the first ids; None: from all.
    """

    ids: NDArray[np.int64]
    vocab_size: int
    training_coverage: float
    held_out_coverage: float
    deep: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether it is the target's own."""
        return len(self.ids) == self.vocab_size

    def require_full(self, kind: str) -> None:
        """Raises ValueError unless it is the target's own, for layouts that know no other."""
        if not self.is_full:
            raise ValueError(f"a {kind} head has no draft vocabulary of its own: draft-vocabulary must be full")

    def describe(self) -> str:
        """One line for the user."""
        line = (
            f"draft vocabulary: {len(self.ids):,} of {self.vocab_size:,} tokens, which cover "
            f"{self.training_coverage:.2%} of the answers and {self.held_out_coverage:.2%} of held-out ones"
        )
        return line if self.held_out_coverage >= 0.98 or self.is_full else f"{line}; 98% is wanted: choose more"


def choose_vocabulary(
    corpus: Corpus,
    vocab_size: int,
    stops: Collection[int],
    size: int | str,
    known: Sequence[int] = (),
    known_deep: int | None = None,
) -> DraftVocabulary:
    """The ``size`` most useful tokens.

    Order: tokens that end an answer; tokens of the data by frequency, those of prompts and texts at a discount; then by
    id, which in a vocabulary of merged pairs is the order of frequency in the text its tokenizer was made from.

    Args:
        corpus: counts are of its training side, the coverage also of the other.
        vocab_size: of the target.
        stops: tokens that end an answer.
        size: how many, ``"full"``, or ``"auto"``: as many as are known, or the smallest of `SIZES` that covers enough.
        known: tokens of the head that the training begins with: they come first, in their order, if there is room.
        known_deep: how many of those its deeper levels choose from.

    Raises:
        ValueError: the size is out of range.
    """
    answers = count_tokens(corpus.training, vocab_size, ANSWER)
    others = count_tokens(corpus.training, vocab_size) - answers
    held_out = count_tokens(corpus.held_out, vocab_size, ANSWER)
    worth = answers + FOREIGN_WEIGHT * others
    worth[list(stops)] = np.inf
    order = np.lexsort((np.arange(vocab_size), -worth))
    if size == "auto" and known:
        size = len(known)
    continues = known and isinstance(size, int) and len(known) <= size < vocab_size
    if continues:
        order = np.concatenate([np.array(known), order[~np.isin(order, known)]])
    if size == "auto":
        covered = np.cumsum(held_out[order]) / max(1, held_out.sum())
        fitting = [s for s in SIZES if s < vocab_size and covered[s - 1] >= WANTED_COVERAGE]
        largest = max([s for s in SIZES if s < vocab_size], default=vocab_size)
        size = fitting[0] if fitting else largest
    elif size == "full":
        size = vocab_size
    if not isinstance(size, int) or not len(set(stops)) < size <= vocab_size:
        raise ValueError(f"the draft vocabulary must be auto, full or a number up to {vocab_size}, got {size!r}")
    ids = order[:size] if size < vocab_size else np.arange(vocab_size)
    if not continues:
        known_deep = _deep_size(answers, ids) if size < vocab_size else None
    return DraftVocabulary(ids, vocab_size, _coverage(answers, ids), _coverage(held_out, ids), known_deep)


def _deep_size(counts: NDArray[np.int64], ids: NDArray[np.int64]) -> int | None:
    """How many of the ids cover `DEEP_COVERAGE` of the tokens, in whole steps; None where that is more than half."""
    covered = np.cumsum(counts[ids]) / max(1, counts.sum())
    size = DEEP_STEP * (1 + int(np.searchsorted(covered, DEEP_COVERAGE)) // DEEP_STEP)
    return size if 2 * size <= len(ids) else None


def _coverage(counts: NDArray[np.int64], ids: NDArray[np.int64]) -> float:
    return float(counts[ids].sum() / max(1, counts.sum()))
