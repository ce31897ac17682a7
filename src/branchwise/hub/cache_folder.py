"""Where fetched models lie on disk, and when a folder counts as a whole model.

    <root>/models/NAME/         a complete model; `branchwise.json` in it says where it came from
    <root>/gguf/NAME.gguf       the file it was made from, for runtimes that read it; only when somebody asked for it
    <root>/partial/NAME/        work in progress, reused by the next try and removed after success
    <root>/locks/NAME.lock      held by the process that works in partial/NAME

A model folder is filled under `partial/` and renamed to `models/` in one step, `branchwise.json` included, so that a
process killed at any moment leaves no folder that looks complete. The lock is the operating system's (it ends with its
holder, however that ended), so a dead process blocks nobody.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchwise.hub.named_models import NamedModel

if TYPE_CHECKING:
    from filelock import BaseFileLock

CACHE_VARIABLE = "BRANCHWISE_CACHE"
PROVENANCE_FILE = "branchwise.json"
# Raised when convert.py starts to write other folders from the same GGUF, so that older ones are made anew.
CONVERSION = 1


@dataclass(frozen=True)
class CacheFolder:
    """The paths under one cache root. Making one creates nothing on disk."""

    root: Path

    @classmethod
    def locate(cls, cache_dir: str | os.PathLike[str] | None = None) -> CacheFolder:
        """The cache at `cache_dir`, else at `$BRANCHWISE_CACHE`, else the user's cache folder of this platform."""
        chosen = cache_dir or os.environ.get(CACHE_VARIABLE)
        if chosen is None or chosen == "":
            import platformdirs

            chosen = platformdirs.user_cache_dir("branchwise", appauthor=False)
        return cls(Path(chosen).expanduser().absolute())

    def model(self, model: NamedModel) -> Path:
        return self.root / "models" / model.name

    def gguf(self, model: NamedModel) -> Path:
        return self.root / "gguf" / f"{model.name}.gguf"

    def partial(self, model: NamedModel) -> Path:
        return self.root / "partial" / model.name

    def lock(self, model: NamedModel) -> BaseFileLock:
        """One holder at a time over all threads and processes; released by the system when the holder dies."""
        from filelock import FileLock

        path = self.root / "locks" / f"{model.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def provenance(self, model: NamedModel) -> dict[str, Any] | None:
        """What `branchwise.json` of a fetched model says, or None when there is none that can be read."""
        try:
            found = json.loads((self.model(model) / PROVENANCE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def is_complete(self, model: NamedModel) -> bool:
        """Whether the folder is there and was made from the bytes that are pinned now, by today's conversion."""
        found = self.provenance(model)
        return (
            found is not None
            and found.get("gguf_sha256") == model.gguf_sha256
            and found.get("conversion") == CONVERSION
        )

    def install(self, folder: Path, model: NamedModel) -> Path:
        """Renames a finished folder into place. Call it with the lock held.

        Args:
            folder: a folder under this root (same file system), complete with its `branchwise.json`.
            model: whose folder it is.
        """
        target = self.model(model)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():  # of other bytes or an older conversion, else nobody would have made this one
            shutil.rmtree(target)
        os.replace(folder, target)
        return target
