"""Token sequences on disk, in shards that are whole or absent.

    DIR/dataset.json                what wrote the data: target, seed, settings
    DIR/shard-00000.safetensors     tokens [T] int32, roles [T] uint8, ends [n] int64, and a checksum over them

Sequence i of a shard is ``tokens[ends[i - 1] : ends[i]]``. Knows token ids and roles; knows no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .disk import write_json, write_whole
from .identity import Identity

FORMAT: Final = 1
MANIFEST: Final = "dataset.json"

#: who wrote a token: the template, somebody else than the target (or the target in the user's place), or the target
CONTEXT: Final = 0
USER: Final = 1
ANSWER: Final = 2

#: bytes of one token in a shard: an int32 and a role
BYTES_PER_TOKEN: Final = 5


class DamagedShard(ValueError):
    """A shard's bytes are not those that were written."""


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """One text.

    Attributes:
        number: its place in the data.
        kind: of its opener, or of its source.
        tokens: int32 ``[L]``.
        roles: uint8 ``[L]``, one of `CONTEXT`, `USER`, `ANSWER`.
    """

    number: int
    kind: str
    tokens: NDArray[np.int32]
    roles: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def answer_tokens(self) -> int:
        """Tokens that the target wrote as itself."""
        return int((self.roles == ANSWER).sum())


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards holds.

    Attributes:
        target: that wrote the data.
        settings: everything that decides what is written.
    """

    target: Identity
    settings: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Puts it beside the shards."""
        record = {"format": FORMAT, "target": self.target.as_dict(), "settings": self.settings}
        write_json(folder / MANIFEST, record, what="the description of the data")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder.

        Raises:
            ValueError: there is none, or it is of another format.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise ValueError(f"{folder} holds no training data (no {MANIFEST}): branchwise train data writes one")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(f"format {record['format']}, this version reads {FORMAT}")
            return cls(Identity.from_dict(record["target"]), record["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be read ({error}): generate the data again in a new folder") from None


def shard_path(folder: Path, shard: int) -> Path:
    """Where a shard lies."""
    return folder / f"shard-{shard:05d}.safetensors"


def shard_numbers(folder: Path) -> list[int]:
    """Shards that are there, in order."""
    return sorted(int(path.stem.removeprefix("shard-")) for path in folder.glob("shard-?????.safetensors"))


def write_shard(folder: Path, shard: int, sequences: Sequence[TokenSequence]) -> None:
    """Writes one shard, whole or not at all.

    Raises:
        DiskFull: no room; earlier shards are untouched.
    """
    from safetensors.numpy import save_file

    tensors: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([np.empty(0, np.int32), *(s.tokens for s in sequences)]),
        "roles": np.concatenate([np.empty(0, np.uint8), *(s.roles for s in sequences)]),
        "ends": np.cumsum([len(s) for s in sequences], dtype=np.int64),
    }
    about = {
        "format": FORMAT,
        "sha256": _checksum(tensors),
        "numbers": [s.number for s in sequences],
        "kinds": [s.kind for s in sequences],
    }
    save = partial(save_file, tensors, metadata={"branchwise": json.dumps(about)})
    write_whole(shard_path(folder, shard), save, what=f"shard {shard}")


def read_shard(folder: Path, shard: int) -> list[TokenSequence]:
    """The sequences of one shard.

    Raises:
        DamagedShard: it cannot be read, or its bytes changed; says which and what to do.
    """
    from safetensors import safe_open

    path = shard_path(folder, shard)
    try:
        with safe_open(path, framework="numpy") as stored:
            about = json.loads(stored.metadata()["branchwise"])
            tensors = {name: stored.get_tensor(name) for name in ("tokens", "roles", "ends")}
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, this version reads {FORMAT}")
        if about["sha256"] != _checksum(tensors):
            raise ValueError("the checksum does not match")
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a broken file makes the readers raise
        raise DamagedShard(
            f"{path} is damaged ({error}): delete it and run branchwise train data again, which writes it anew; the "
            "other shards are kept"
        ) from None
    starts = [0, *tensors["ends"].tolist()]
    return [
        TokenSequence(number, kind, tensors["tokens"][start:end], tensors["roles"][start:end])
        for number, kind, start, end in zip(about["numbers"], about["kinds"], starts, starts[1:], strict=False)
    ]


def read_all(folder: Path) -> Iterator[TokenSequence]:
    """The sequences of every shard, in order."""
    for shard in shard_numbers(folder):
        yield from read_shard(folder, shard)


def _checksum(tensors: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()
