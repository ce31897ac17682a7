"""Suffix stores on disk: the same after a round trip, refused when damaged, whole whenever the writer dies."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import struct
import time
from pathlib import Path

import pytest

from branchwise.draft import SuffixStore
from branchwise.draft.suffix_file import VERSION, _pack, _unpack

pytestmark = pytest.mark.core


def filled(seed: int = 0, passages: int = 6, max_tokens: int = 700) -> SuffixStore:
    coins = random.Random(seed)
    store = SuffixStore(max_tokens)
    store.claim(50)
    for _ in range(passages):
        text = [coins.randrange(50) for _ in range(200)]
        store.add(text)
        store.use(match.position for match in store.matches(text[:100]))
    return store


def columns(store: SuffixStore) -> list:
    text = store.text
    parts = [text.tokens, text.following, text.preceding, text.born, text.open, text.filled, text.births]
    return [*parts, store.uses, store.worth, store.age, store.max_tokens, store.vocab_size]


def resigned(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize("passages", [0, 1, 6])
def test_the_same_after_a_round_trip_and_from_then_on(tmp_path: Path, passages: int) -> None:
    store = filled(passages=passages)
    store.save(tmp_path / "store")
    loaded = SuffixStore.load(tmp_path / "store")
    loaded.check_integrity()
    for seed in (3, 4):
        assert columns(loaded) == columns(store)
        window = [random.Random(seed).randrange(50) for _ in range(9)]
        assert loaded.matches(window) == store.matches(window)
        for one in (store, loaded):
            one.add(window * 20)
    assert os.listdir(tmp_path) == ["store"]


def test_a_store_without_a_lane_has_no_vocabulary_after_loading_either(tmp_path: Path) -> None:
    store = SuffixStore(500)
    store.save(tmp_path / "store")
    assert SuffixStore.load(tmp_path / "store").vocab_size is None


def test_damage_anywhere_is_refused(tmp_path: Path) -> None:
    content = _pack(filled(passages=2))
    path = tmp_path / "store"
    coins = random.Random(1)
    # every byte of the header and the digest, and some of everything between
    places = {*range(90), *range(len(content) - 33, len(content)), *coins.sample(range(len(content)), 60)}
    for place in sorted(places):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << coins.randrange(8))]) + content[place + 1 :])
        with pytest.raises(ValueError, match="cannot be used as a suffix store"):
            SuffixStore.load(path)


def test_a_file_cut_short_or_too_long_is_refused(tmp_path: Path) -> None:
    content = _pack(filled(passages=2))
    path = tmp_path / "store"
    for length in (0, 1, 40, 100, len(content) // 2, len(content) - 32, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="remove it to start anew"):
            SuffixStore.load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match="checksum"):
        SuffixStore.load(path)


def test_another_version_is_named(tmp_path: Path) -> None:
    body = bytearray(_pack(filled())[:-32])
    struct.pack_into("<I", body, 8, VERSION + 1)
    path = tmp_path / "store"
    path.write_bytes(resigned(bytes(body)))
    with pytest.raises(ValueError, match=f"has version {VERSION + 1} .* reads {VERSION}"):
        SuffixStore.load(path)


@pytest.mark.parametrize("field", range(7))
@pytest.mark.parametrize("value", [-7, 5, 1 << 40])
def test_what_is_signed_but_impossible_is_refused(field: int, value: int) -> None:
    good = _pack(filled())[:-32]
    body = bytearray(good)
    struct.pack_into("<q", body, 16 + 8 * field, value)
    # still possible: another vocabulary or age, a larger bound
    if bytes(body) == good or field in (1, 6) or (field == 0 and value >= 700):
        return
    with pytest.raises((ValueError, AssertionError)):
        _unpack(resigned(bytes(body)))


def test_no_file_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SuffixStore.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        filled().save(tmp_path / "no folder" / "store")


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    filled(1).save(path)
    before = path.read_bytes()

    def no_room(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="no space"):
        filled(2).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["store"]


def save_again_and_again(path: str, seed: int) -> None:
    store = filled(seed)
    while True:
        store.save(path)


def test_writers_killed_at_any_moment_and_several_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(0).save(path)
    whole = [columns(filled(seed)) for seed in range(3)]
    context = multiprocessing.get_context("fork")
    for round_ in range(3):
        writers = [context.Process(target=save_again_and_again, args=(str(path), seed)) for seed in (1, 2)]
        for writer in writers:
            writer.start()
        until = time.monotonic() + 0.2 + 0.05 * round_
        reads = 0
        while time.monotonic() < until or not reads:
            assert columns(SuffixStore.load(path)) in whole
            reads += 1
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        assert columns(SuffixStore.load(path)) in whole
