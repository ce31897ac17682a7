"""What a test needs that runs code of C: a compiler on the machine."""

from __future__ import annotations

import shutil

import pytest

# kernels are compiled where they are used; without a compiler torch or Python do their work, which other tests cover
NEEDS_COMPILER = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler")
