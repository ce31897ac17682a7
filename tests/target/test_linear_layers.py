"""Linear layers of the native engine, each by itself, against what numbers and rounding say in float64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from branchwise.native import kernel
from branchwise.target.native_engine import DECODER_SOURCES
from branchwise.target.native_packing import Packed
from branchwise.target.native_parts import PRODUCTS, NativeParts
from branchwise.target.quantised import quantise
from compiler import NEEDS_COMPILER, OTHER_PROCESSORS

pytestmark = [pytest.mark.core, NEEDS_COMPILER]
SOURCE = Path(__file__).with_name("linear_layer.c")
#: what is multiplied in what
WAYS = {"f32": ("f32", "bf16", "int8", "int4"), "int8": ("int8", "int4"), "bf16": ("bf16", "int8", "int4")}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# bfloat16 has 8 bits, of the sum's largest parts; whole numbers and floats are as exact as their float32 sums
TOLERANCE = {"f32": 1e-6, "int8": 1e-6, "bf16": 6e-3}


def layer(library: ctypes.CDLL, x: torch.Tensor, weight, products: str) -> torch.Tensor:
    packed = Packed.of(weight)
    parts = NativeParts(packed.packed_bytes, products=products)
    matrix, out = parts.matrix(packed, None), torch.full((len(x), packed.outputs), torch.nan)
    library.linear_layer(
        ctypes.byref(matrix),
        ctypes.c_void_p(x.data_ptr()),
        *map(ctypes.c_int64, (*x.shape, PRODUCTS.index(products))),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out


def in_8_bits(x: torch.Tensor) -> torch.Tensor:
    """Rows as they are multiplied: 32 numbers and their largest are whole numbers and 127, times a scale."""
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    largest = groups.abs().amax(2, keepdim=True)
    by = torch.where(largest > 0, 127 / largest, 0.0)
    whole = (groups.double() * by.double()).round()
    return (whole * (largest / 127).double()).flatten(1)[:, : x.shape[1]]


def check_layer(library: ctypes.CDLL, products: str, form: str, outputs: int, inputs: int, rows: int) -> None:
    full = torch.randn(outputs, inputs) + 0.5  # off the middle, so that zeros count
    x = torch.randn(rows, inputs) * torch.logspace(-2, 2, rows)[:, None] + 0.3
    x[0, 32:64] = 0
    weight = quantise(full, form) if form.startswith("int") else full.to(DTYPES[form])
    stands_for = (weight if isinstance(weight, torch.Tensor) else weight.dequantised()).double()
    seen = in_8_bits(x) if products == "int8" else x.double()
    off = (layer(library, x, weight, products) - seen @ stands_for.T).abs()
    assert (off <= TOLERANCE[products] * (seen.abs() @ stands_for.abs().T) + 1e-9).all(), (products, form)


@pytest.mark.parametrize("flags", [(), *OTHER_PROCESSORS], ids=lambda flags: " ".join(flags) or "this one")
def test_a_layer_is_its_weights_times_its_rounded_rows(flags, monkeypatch, tmp_path):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    library = kernel.load_kernel(SOURCE, DECODER_SOURCES, flags=flags).library
    assert library is not None
    torch.manual_seed(0)
    for products, forms in WAYS.items():
        if products == "bf16" and library.bfloat16_way() == 0:
            continue
        for form in forms:
            for outputs, inputs, rows in ((40, 96, 1), (64, 128, 7), (33, 64, 38)):
                check_layer(library, products, form, outputs, inputs, rows)
