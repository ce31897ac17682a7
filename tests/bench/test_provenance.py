"""What a result says about its origin."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from branchwise.bench.provenance import git_commit, shown_command, weights_sha256

pytestmark = pytest.mark.core


def test_the_command_without_folders() -> None:
    argv = ["/opt/x/bin/branchwise", "bench", "/data/p.jsonl", "--json=/tmp/o.json", "--model", "owner/name", "rel/p"]
    assert shown_command(argv) == "branchwise bench p.jsonl --json=o.json --model owner/name rel/p"
    assert shown_command(["-c", "version"]) == "branchwise version"


def test_commit_and_dirty_flag(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    assert git_commit(tmp_path) is None, "the package is not part of that checkout"
    (tmp_path / "__init__.py").write_text("")
    git("add", ".")
    git("commit", "-qm", "one")
    found = git_commit(tmp_path)
    assert found is not None and len(found["id"]) == 40 and found["dirty"] is False
    (tmp_path / "new.py").write_text("")
    assert (git_commit(tmp_path) or {})["dirty"] is True


def test_a_checksum_depends_on_every_weight_file(tmp_path: Path) -> None:
    assert weights_sha256(tmp_path) is None
    (tmp_path / "a.safetensors").write_bytes(b"one")
    first = weights_sha256(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"two")
    assert first != weights_sha256(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert weights_sha256(tmp_path) == weights_sha256(tmp_path)
