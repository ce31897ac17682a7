"""Text files as training data, as they are: cut into sequences, written into the same shards as dialogues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .disk import require_room
from .identity import Identity
from .progress import Progress
from .shards import BYTES_PER_TOKEN, USER, Manifest, TokenSequence, shard_numbers, write_shard
from .writing import Tally, only_writer, open_folder

#: bytes of text per token, about; for the disk
BYTES_OF_TEXT_PER_TOKEN = 4


def write_texts(
    folder: Path,
    tokenizer: Any,
    identity: Identity,
    files: Sequence[Path],
    *,
    longest: int,
    sequences_per_shard: int,
    progress: Progress,
) -> Tally:
    """Cuts files into sequences of at most ``longest`` tokens and writes them; the tokens count as the user's.

    Raises:
        ValueError: a file is no UTF-8 text, or the folder holds other data.
        DiskFull: no room; finished shards are kept.
    """
    settings = {"texts": [file.name for file in files], "longest": longest, "sequences_per_shard": sequences_per_shard}
    with only_writer(folder):
        open_folder(folder, Manifest(identity, settings))
        size = sum(file.stat().st_size for file in files)
        progress.say(
            require_room(folder, size * BYTES_PER_TOKEN // BYTES_OF_TEXT_PER_TOKEN, what="tokens of the texts")
        )
        done = set(shard_numbers(folder))
        tally = Tally()
        sequences = _sequences(tokenizer, files, longest)
        shard = read = 0
        while part := list(islice(sequences, sequences_per_shard)):
            if shard not in done:
                write_shard(folder, shard, part)
            for sequence in part:
                tally.add(sequence)
            shard += 1
            read += sum(map(len, part))
            done_share = min(1.0, read * BYTES_OF_TEXT_PER_TOKEN / max(1, size))
            progress.update(done_share, f"{tally.dialogues:,} sequences")
        return tally


def _sequences(tokenizer: Any, files: Sequence[Path], longest: int) -> Iterator[TokenSequence]:
    number = 0
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start})") from None
        ids = np.array(tokenizer(text).input_ids, np.int32)
        for start in range(0, len(ids), longest):
            part = ids[start : start + longest]
            if len(part) > 1:
                yield TokenSequence(number, file.name, part, np.full(len(part), USER, np.uint8))
                number += 1
