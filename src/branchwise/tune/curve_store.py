"""Cost curves on disk: one small file per key in the cache folder.

    <root>/cost_curves/<digest of the key>.json

A file that is damaged, of another schema or of another key is not there (one note in the log, level debug) and is
written anew when there is something to write. A file is written beside its place and renamed, so that it is whole at
any moment, whoever reads and however many write. Where nothing can be written, nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from ..hub.cache_folder import CacheFolder
from .cost_table import Column, CostTable

logger = logging.getLogger("branchwise.tune")


class CurveStore:
    """The curve of one key.

    Args:
        key: see `curve_key`.
        folder: where curves lie; in the cache folder by default.
    """

    def __init__(self, key: Mapping[str, Any], folder: Path | None = None) -> None:
        # as it comes back from the file: tuples are lists there
        self.key: dict[str, Any] = json.loads(json.dumps(dict(key), sort_keys=True))
        folder = CacheFolder.locate().root / "cost_curves" if folder is None else folder
        self.path = folder / f"{hashlib.sha256(json.dumps(self.key).encode()).hexdigest()[:32]}.json"

    def load(self) -> CostTable | None:
        """The curve, or None when there is none that can be trusted."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            table = CostTable.from_dict(found)
            if found.get("key") != self.key:
                raise ValueError("it belongs to another machine or model")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            logger.debug("the cost curve %s is ignored: %s", self.path.name, error)
            return None
        return table

    def save(self, table: CostTable) -> bool:
        """Writes the curve in place of what is there; returns whether that was possible."""
        text = json.dumps(table.as_dict(self.key), indent=1) + "\n"
        fresh = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=self.path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
                fresh = file.name
                file.write(text)
            os.replace(fresh, self.path)
        except OSError as error:
            logger.debug("the cost curve cannot be kept: %s", error)
            if fresh is not None:
                Path(fresh).unlink(missing_ok=True)
            return False
        return True

    def add(self, column: Column) -> None:
        """Adds what was learned of one context, unless the curve tells of it already."""
        known = self.load()
        if known is None:
            self.save(CostTable((column,)))
        elif column.context not in known.contexts:
            self.save(known.with_column(column))
