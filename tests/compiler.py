"""What tests of code in C need: a compiler on the machine, and flags that make this processor another."""

from __future__ import annotations

import shutil

import pytest

# kernels are compiled where they are used; without a compiler torch or Python do their work, which other tests cover
NEEDS_COMPILER = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler")

# flags of x86 compilers: one without the matrix unit, without bfloat16, with AVX2 alone, and of the first of its kind
OTHER_PROCESSORS = [
    ("-mno-amx-bf16",),
    ("-mno-amx-bf16", "-mno-avx512bf16"),
    ("-march=x86-64-v3",),
    ("-march=x86-64",),
]
