"""Where a result came from: command, code, versions, machine and model. No host name, no path of the machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ..hub.cache_folder import PROVENANCE_FILE
from ..tune.curve_key import cpu_model


def provenance(**facts: Any) -> dict[str, Any]:
    """The record; ``facts`` (threads, dtype, model, ...) are added as they are."""
    import torch

    return {
        "command": shown_command(sys.argv),
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "cpu": cpu_model(),
        "logical_cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        **facts,
    }


_PACKAGES = ("branchwise", "torch", "transformers", "numpy")


def _version(package: str) -> str | None:
    if package == "branchwise":
        from .. import __version__

        return __version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def shown_command(argv: Sequence[str]) -> str:
    """The command line with absolute paths shortened to their last part."""
    program = Path(argv[0]).name if argv else ""
    # python -c and python -m leave no name of their own
    words = ["branchwise" if program in ("", "-c", "-m", "__main__.py") else program, *argv[1:]]
    return " ".join(_without_folders(word) for word in words)


def _without_folders(word: str) -> str:
    head, equals, tail = word.rpartition("=")
    return f"{head}{equals}{Path(tail).name}" if os.path.isabs(tail) else word


def git_commit(folder: Path | None = None) -> dict[str, Any] | None:
    """Commit and whether the work tree differs from it; None where the code is not a git checkout."""
    here = folder or Path(__file__).resolve().parents[1]
    try:
        # a package installed below somebody else's checkout is not that checkout's code
        _git(here, "ls-files", "--error-unmatch", "__init__.py")
        return {"id": _git(here, "rev-parse", "HEAD"), "dirty": bool(_git(here, "status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def model_facts(asked: str, place: str, model: Any) -> dict[str, Any]:
    """Which weights ran: the named model's pinned checksum, a Hub revision, or a checksum of the weight files.

    Args:
        asked: the name, folder or Hub id the user gave.
        place: what it was resolved to.
        model: the loaded model.
    """
    return {
        **weights_facts(asked, place, model.config),
        "architecture": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
    }


def weights_facts(asked: str, place: str, config: Any) -> dict[str, Any]:
    """The same without what only a loaded model knows.

    Args:
        asked: see `model_facts`.
        place: see `model_facts`.
        config: the model's.
    """
    name = Path(asked).name if os.path.isabs(asked) else asked
    folder = Path(place)
    if not folder.is_dir():
        return {"name": name, "revision": getattr(config, "_commit_hash", None)}
    pinned = _pinned(folder / PROVENANCE_FILE)
    if pinned is not None:
        return {"name": pinned["name"], "gguf_sha256": pinned["gguf_sha256"]}
    return {"name": name, "weights_sha256": weights_sha256(folder)}


def _pinned(record: Path) -> dict[str, Any] | None:
    """The hub room's own record beside a converted model, or None."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and {"name", "gguf_sha256"} <= set(content) else None


def weights_sha256(folder: Path) -> str | None:
    """One checksum over the names and bytes of a folder's weight files; None when it has none."""
    files = sorted(file for suffix in ("*.safetensors", "*.bin") for file in folder.glob(suffix))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
