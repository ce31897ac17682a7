"""Shared set-up: no network, one thread count, deterministic tiny models."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Ray gives up a proxy that takes five seconds to start, which it does on a busy machine
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "90")

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads it when it is first imported: kernels run in its interpreter, on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
