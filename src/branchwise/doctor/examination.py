"""All findings in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import Finding
from .heads import draft_heads
from .machine import machine
from .packages import core_packages, extras
from .self_test import self_test
from .storage import storage


def examine(device: str = "cpu") -> Iterator[Finding]:
    """Yields findings as they come; the proofs run on ``device``."""
    yield core_packages()
    yield from machine()
    yield from storage()
    yield draft_heads()
    yield from extras()
    yield from self_test(device)
