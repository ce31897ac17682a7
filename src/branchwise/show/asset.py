"""The style sheet and the scripts of pages and pictures, as text. Knows the folder ``assets`` and nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def asset(name: str) -> str:
    """The text of a file in ``assets/``."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")
