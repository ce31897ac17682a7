"""Shards: what is written is read, and what is damaged, foreign or too large is said so."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_rig import answer_sequence

from branchwise.train import disk
from branchwise.train.disk import DiskFull, require_room, show_bytes
from branchwise.train.identity import Identity, TargetMismatch
from branchwise.train.shards import (
    DamagedShard,
    Manifest,
    read_all,
    read_shard,
    shard_numbers,
    shard_path,
    write_shard,
)

pytestmark = pytest.mark.core

TARGET = Identity("weights", "tokens", 32, 2, 51)


def test_sequences_come_back_as_they_were(tmp_path: Path) -> None:
    written = [answer_sequence(7, [1, 2, 3]), answer_sequence(9, [4], 0), answer_sequence(10, [5, 6])]
    write_shard(tmp_path, 3, written[:2])
    write_shard(tmp_path, 1, [])
    write_shard(tmp_path, 4, written[2:])
    assert shard_numbers(tmp_path) == [1, 3, 4]
    for one, other in zip(read_all(tmp_path), written, strict=True):
        assert (one.number, one.kind, one.answer_tokens) == (other.number, other.kind, other.answer_tokens)
        assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.roles, other.roles)


@pytest.mark.parametrize("byte", [4, -1, -30])
def test_a_changed_byte_is_found_and_the_shard_named(tmp_path: Path, byte: int) -> None:
    write_shard(tmp_path, 0, [answer_sequence(0, list(range(40)))])
    write_shard(tmp_path, 1, [answer_sequence(1, list(range(40)))])
    path = shard_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    assert len(read_shard(tmp_path, 0)) == 1
    with pytest.raises(DamagedShard, match=r"shard-00001.*delete it"):
        read_shard(tmp_path, 1)


def test_half_a_file_is_found(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, [answer_sequence(0, list(range(40)))])
    path = shard_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedShard):
        read_shard(tmp_path, 0)


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shard(tmp_path, 0, [answer_sequence(0, [1, 2])])

    def no_room(*_: object, **__: object) -> None:
        # what safetensors makes of the system's error: its text survives, its number does not
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", no_room)
    with pytest.raises(DiskFull, match=r"shard 1 .*everything finished before is kept") as caught:
        write_shard(tmp_path, 1, [answer_sequence(1, [3])])
    assert caught.value.errno == errno.ENOSPC
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-00000.safetensors"]


def test_the_room_is_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: type("", (), {"free": 2_000_000})())
    assert require_room(tmp_path / "not" / "yet", 1_500_000, what="features") == (
        "features: 1.5 MB on disk, 2.0 MB free"
    )
    with pytest.raises(DiskFull, match=r"features needs 3\.0 MB .* only 2\.0 MB are free"):
        require_room(tmp_path, 3_000_000, what="features")
    assert show_bytes(2_100) == "2 kB"


def test_the_manifest_comes_back(tmp_path: Path) -> None:
    manifest = Manifest(TARGET, {"seed": 3})
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    (tmp_path / "dataset.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        Manifest.read(tmp_path)
    with pytest.raises(ValueError, match="no training data"):
        Manifest.read(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "hidden size is 64, this one's is 32"),
        ({"layers": 4}, "number of layers is 4"),
        ({"tokens": "other"}, "another tokenizer"),
        ({"vocab_size": 52}, "another tokenizer"),
        ({"weights": "other"}, "other weights"),
    ],
)
def test_another_target_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(TargetMismatch, match=message):
        TARGET.require_same(replace(TARGET, **change), "the checkpoint")
    TARGET.require_same(TARGET, "the checkpoint")
