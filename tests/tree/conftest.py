"""Property tests must not fail because a shared machine was slow for a moment, and must repeat themselves in CI."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("branchwise", deadline=None, derandomize=True, database=None)
settings.load_profile("branchwise")
