"""Every kernel in C compiles where there is a compiler: the tests of each are skipped where it does not."""

from __future__ import annotations

import pytest

from branchwise.attention.native import native
from branchwise.draft.native_head import head_library
from branchwise.draft.native_tables import mix_library
from branchwise.draft.top_native import top_kernel
from branchwise.target.native_engine import native_library
from compiler import NEEDS_COMPILER

pytestmark = [pytest.mark.core, NEEDS_COMPILER]


@pytest.mark.parametrize("kernel", [native, top_kernel, native_library, head_library])
def test_it_compiles(kernel):
    found = kernel()
    assert found.library is not None, found.reason


def test_mixing_compiles():
    assert mix_library() is not None
