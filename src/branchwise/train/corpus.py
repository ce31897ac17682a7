"""What a head is trained on and what it is measured on: sequences from one or more data folders, split once.

The split is by a sequence's own number, so it stays when data are added, and no sequence is ever on both sides.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..warning import BranchwiseWarning
from .identity import Identity
from .shards import Manifest, TokenSequence, read_shard, shard_numbers

#: one sequence in so many is held out
HELD_OUT_ONE_IN = 32
#: so many at most are measured
MOST_HELD_OUT = 48


@dataclass(frozen=True, eq=False)
class Piece:
    """A sequence and where it lies.

    Attributes:
        folder: which of the corpus's folders.
        shard: number of the shard.
        start: first token within the shard.
        sequence: what it holds.
    """

    folder: int
    shard: int
    start: int
    sequence: TokenSequence

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Training data.

    Attributes:
        folders: where they lie.
        shards: which shards of each folder are used; data written later do not change a training that has begun.
        training, held_out: the two sides, in the order of the files.
    """

    folders: tuple[Path, ...]
    shards: tuple[tuple[int, ...], ...]
    training: tuple[Piece, ...]
    held_out: tuple[Piece, ...]

    @property
    def tokens(self) -> int:
        """Tokens on the training side."""
        return sum(map(len, self.training))

    @property
    def answer_tokens(self) -> int:
        """Tokens of answers on the training side."""
        return sum(piece.sequence.answer_tokens for piece in self.training)


def read_corpus(folders: Sequence[Path], target: Identity, *, shards: Sequence[Sequence[int]] | None = None) -> Corpus:
    """Reads everything there is, or the shards that a training began with.

    Args:
        folders: of `train data`.
        target: whose head is trained.
        shards: of each folder.

    Raises:
        ValueError: nothing to train on, or a shard that a training began with is gone.
        TargetMismatch: data of another tokenizer.
        DamagedShard: names the shard.
    """
    if not folders:
        raise ValueError("name at least one folder of data; branchwise train data writes one")
    training: list[Piece] = []
    held_out: list[Piece] = []
    used = []
    for place, folder in enumerate(folders):
        _check_author(folder, target)
        there = shard_numbers(folder)
        wanted = there if shards is None else list(shards[place])
        missing = sorted(set(wanted) - set(there))
        if missing:
            raise ValueError(f"{folder} lacks shard {missing[0]}, which this training began with")
        used.append(tuple(wanted))
        for shard in wanted:
            start = 0
            for sequence in read_shard(folder, shard):
                side = held_out if _is_held_out(folder, sequence) else training
                side.append(Piece(place, shard, start, sequence))
                start += len(sequence)
    if not training or not held_out:
        raise ValueError(
            f"the data are too few: {len(training)} sequences to train on, {len(held_out)} to measure on (one in "
            f"{HELD_OUT_ONE_IN} is held out); write more"
        )
    return Corpus(tuple(folders), tuple(used), tuple(training), tuple(held_out[:MOST_HELD_OUT]))


def _check_author(folder: Path, target: Identity) -> None:
    author = Manifest.read(folder).target
    target.require_same_tokens(author, f"the data in {folder}")
    if author.weights != target.weights:
        warnings.warn(
            f"the data in {folder} were written by other weights ({author.weights}) than the target's "
            f"({target.weights}): heads learn best from what their own target writes",
            BranchwiseWarning,
            stacklevel=2,
        )


def _is_held_out(folder: Path, sequence: TokenSequence) -> bool:
    digest = hashlib.sha256(f"{folder.name} {sequence.number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def count_tokens(pieces: Sequence[Piece], vocab_size: int, role: int | None = None) -> np.ndarray:
    """How often each token occurs, of one role or of all: int64 ``[V]``."""
    counts = np.zeros(vocab_size, np.int64)
    for piece in pieces:
        tokens = piece.sequence.tokens
        if role is not None:
            tokens = tokens[piece.sequence.roles == role]
        counts += np.bincount(tokens, minlength=vocab_size)
    return counts
