"""Suffix stores as files. Knows the layout, the checksum and how to replace a file in one step.

    header   magic, version, tokens per block, max_tokens, vocab_size (-1: none), blocks, open, filled, births, age
    text     int32 [blocks * 64]
    links    int32 [blocks] following, int32 [blocks] preceding
    worth    int64 [blocks] born, int64 [blocks] uses, int64 [blocks] worth
    digest   SHA-256 of all of the above

All numbers are little-endian. The indexes are not stored: they follow from the text.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import tempfile
from array import array
from contextlib import suppress
from pathlib import Path

from .block_text import BLOCK
from .suffix_store import SuffixStore

MAGIC = b"bwsuffix"
VERSION = 1
_HEADER = struct.Struct("<8sII7q")
_DIGEST_BYTES = hashlib.sha256().digest_size
_BLOCK_BYTES = 4 * BLOCK + 2 * 4 + 3 * 8


def save_store(store: SuffixStore, path: str | os.PathLike[str]) -> None:
    """Writes a store to ``path``, which at every moment holds the old file or the whole new one.

    The bytes go to a file of their own beside it first, so a process that is killed leaves the old file as it was, and
    of several that save at once the last one to finish wins.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    target = Path(path).expanduser()
    content = _pack(store)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def load_store(path: str | os.PathLike[str]) -> SuffixStore:
    """The store in a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, of another version or no suffix store at all. Nothing of it is used.
    """
    source = Path(path).expanduser()
    try:
        return _unpack(source.read_bytes())
    except (ValueError, AssertionError) as error:
        raise ValueError(f"{source} cannot be used as a suffix store: {error}; remove it to start anew") from None


def _pack(store: SuffixStore) -> bytes:
    vocab_size = -1 if store.vocab_size is None else store.vocab_size
    text = store.text
    counters = (store.max_tokens, vocab_size, text.blocks, text.open, text.filled, text.births, store.age)
    parts = [_HEADER.pack(MAGIC, VERSION, BLOCK, *counters)]
    parts += [_little_endian(column).tobytes() for column in _columns(store)]
    content = b"".join(parts)
    return content + hashlib.sha256(content).digest()


def _unpack(content: bytes) -> SuffixStore:
    if len(content) < _HEADER.size + _DIGEST_BYTES:
        raise ValueError(f"{len(content)} bytes are too few")
    magic, version, block, *counters = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise ValueError("it does not begin like one")
    if (version, block) != (VERSION, BLOCK):
        raise ValueError(f"it has version {version} with blocks of {block}, this program reads {VERSION} with {BLOCK}")
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its checksum is wrong, so it is damaged or cut short")
    max_tokens, vocab_size, blocks, opened, filled, births, age = counters
    if blocks < 0 or len(body) != _HEADER.size + blocks * _BLOCK_BYTES:
        raise ValueError(f"{len(body)} bytes do not hold {blocks} blocks")
    store = SuffixStore(max_tokens)
    store.vocab_size = None if vocab_size < 0 else vocab_size
    store.age = age
    text = store.text
    text.open, text.filled, text.births = opened, filled, births
    at = _HEADER.size
    for column, entries in zip(_columns(store), (BLOCK * blocks,) + (blocks,) * 5, strict=True):
        end = at + entries * column.itemsize
        column.frombytes(body[at:end])
        column[:] = _little_endian(column)
        at = end
    store.check_blocks()
    store.rebuild()
    return store


def _columns(store: SuffixStore) -> tuple[array[int], ...]:
    """In the order of the file."""
    text = store.text
    return text.tokens, text.following, text.preceding, text.born, store.uses, store.worth


def _little_endian(column: array[int]) -> array[int]:
    """A copy with the bytes of every number in the order of the file; the same call turns it back."""
    copy = array(column.typecode, column)
    if sys.byteorder == "big":
        copy.byteswap()
    return copy
