from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's switch must not matter to the pip route, so it is on in every test; ours start unset."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("BRANCHWISE_OFFLINE", raising=False)
