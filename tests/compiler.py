"""What tests of code in C need: a compiler on the machine, and flags that make this processor another."""

from __future__ import annotations

import platform
import shutil

import pytest

# kernels are compiled where they are used; without a compiler torch or Python do their work, which other tests cover
NEEDS_COMPILER = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler")

# the flags are those of x86 compilers: elsewhere a test runs as compiled for the machine, if it does so too
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86 compilers")
# without the matrix unit, without bfloat16, with AVX2 alone, and of the first of its kind
OTHER_PROCESSORS = [
    pytest.param(flags, marks=X86)
    for flags in (
        ("-mno-amx-bf16",),
        ("-mno-amx-bf16", "-mno-avx512bf16"),
        ("-march=x86-64-v3",),
        ("-march=x86-64",),
    )
]
