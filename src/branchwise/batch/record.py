"""What an output was begun with, kept beside it, so that it is never continued with anything else.

    OUT.jsonl            the answers
    OUT.jsonl.job.json   checksum of the input, and every setting that decides what the answers are

Knows checksums and settings as plain values; does not know what they mean.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1


@dataclass(frozen=True)
class JobRecord:
    """One job.

    Attributes:
        input_sha256: of the whole input.
        rows: of the input.
        settings: name -> value, all that decides the bytes of the output.
    """

    input_sha256: str
    rows: int
    settings: dict[str, Any]

    def begin(self, out: Path) -> None:
        """Checks that an output may be begun or continued with this job, and writes the record for a new one.

        Raises:
            ValueError: the output belongs to another job; says what differs.
            OSError: the record cannot be written.
        """
        place = record_path(out)
        has_rows = out.exists() and out.stat().st_size > 0
        if not place.exists():
            if has_rows:
                raise ValueError(
                    f"{out} is there already and was not begun by this command (no {place.name}); give another name, "
                    "or take it away"
                )
            self._write(place)
            return
        begun = self._read(place)
        if begun == self:
            return
        if not has_rows:
            self._write(place)
            return
        if begun.input_sha256 != self.input_sha256:
            raise ValueError(
                f"the input is not the one that {out} was begun with (sha256 {begun.input_sha256[:12]}..., now "
                f"{self.input_sha256[:12]}...); give that one again, or another name for the output"
            )
        names = sorted({*begun.settings, *self.settings})
        name = next(name for name in names if begun.settings.get(name) != self.settings.get(name))
        raise ValueError(
            f"{out} was begun with {name}={begun.settings.get(name)!r}, now it is {self.settings.get(name)!r}; use the "
            "same settings, or another name for the output"
        )

    def _write(self, place: Path) -> None:
        beside = place.with_name(f".{place.name}.{os.getpid()}.part")
        try:
            with beside.open("w", encoding="utf-8") as stream:
                json.dump({"format": FORMAT, **asdict(self)}, stream, indent=1)
                stream.write("\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)

    @staticmethod
    def _read(place: Path) -> JobRecord:
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}, this version reads {FORMAT}")
            return JobRecord(found["input_sha256"], found["rows"], found["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{place} cannot be read ({error}); take it and its output away, or give another name"
            ) from None


def record_path(out: Path) -> Path:
    """Where the record of an output lies."""
    return out.with_name(f"{out.name}.job.json")


def model_identity(place: str) -> str:
    """A short checksum of a model's folder: its small files by content, its weights by name and size.

    A Hub id that is no folder stands for itself.
    """
    folder = Path(place)
    if not folder.is_dir():
        return place
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if not file.is_file() or file.name.startswith("."):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        if file.suffix in (".json", ".jinja", ".txt", ".model"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
