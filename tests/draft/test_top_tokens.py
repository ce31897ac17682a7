"""The selection in C against sorting every row, with everything that logits may hold; and doing without a compiler."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import top_native
from branchwise.draft.top_tokens import likeliest_tokens, top_tokens
from branchwise.native import kernel
from compiler import NEEDS_COMPILER

pytestmark = [pytest.mark.core, NEEDS_COMPILER]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
#: entries of a part of a row, and of a chunk, in `top.c`
PART, CHUNK = 8192, 512


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    top_native.top_kernel.cache_clear()
    yield
    top_native.top_kernel.cache_clear()


def oracle(logits: torch.Tensor, k: int) -> list[list[tuple[int, float]]]:
    """Every row sorted by value, then by index; probabilities in float64."""
    laws = logits.double().log_softmax(dim=1)
    rows = []
    for row, law in zip(logits.tolist(), laws.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda token, row=row: (-row[token], token))[:k]
        rows.append([(token, law[token]) for token in order])
    return rows


def assert_is_the_oracles(logits: torch.Tensor, k: int) -> None:
    assert top_native.native_top(logits, k, as_log_probabilities=True) is not None, "torch did the work"
    expected = oracle(logits, k)
    found = likeliest_tokens(logits, k)
    assert [[token for token, _ in row] for row in found] == [[token for token, _ in row] for row in expected]
    for row, exact in zip(found, expected, strict=True):
        assert [logp for _, logp in row] == pytest.approx([logp for _, logp in exact], rel=1e-6, abs=2e-6)
        assert all(logp <= 0.0 for _, logp in row)
    values, tokens = top_tokens(logits, k)
    assert values.dtype == logits.dtype
    assert tokens.tolist() == [[token for token, _ in row] for row in expected]
    assert torch.equal(values, logits.gather(1, tokens))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 40) | st.integers(CHUNK - 2, CHUNK + 20) | st.integers(PART - 2, PART + 600),
    k=st.integers(1, 64),
    dtype=st.sampled_from(DTYPES),
    levels=st.sampled_from([2, 30, 5000]),  # few different values: ties everywhere
    shift=st.sampled_from([0, -1000, -2500]),
    hidden=st.sampled_from([0.0, 0.3, 0.97]),  # share of entries that are masked
    seed=st.integers(0, 1000),
)
def test_it_is_the_oracles(rows, width, k, dtype, levels, shift, hidden, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (rows, width), generator=generator).add(shift).div(200).to(dtype)
    logits[torch.rand(rows, width, generator=generator) < hidden] = -torch.inf
    logits[:, -1] = shift / 200  # one entry at least is finite
    assert_is_the_oracles(logits, min(k, width))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_are_no_neighbours_and_several_threads(dtype):
    logits = torch.randn(7, 3 * PART, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert_is_the_oracles(logits[::2, 5:-9], 8)
            assert_is_the_oracles(logits[:2].t().contiguous().t(), 8)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_row_without_probabilities_is_nan_and_the_others_are_not(wrong, dtype):
    logits = torch.zeros(3, 5000, dtype=dtype)
    logits[1, 4321] = wrong
    if wrong == -torch.inf:
        logits[1] = wrong
    rows = likeliest_tokens(logits, 3)
    assert all(logp != logp for _, logp in rows[1])
    for row in (rows[0], rows[2]):
        assert [logp for _, logp in row] == pytest.approx([-8.517193191416238] * 3, abs=2e-6)  # -log(5000)
    if wrong == torch.inf:
        values, tokens = top_tokens(logits, 1)
        assert (values[1, 0], tokens[1, 0]) == (torch.inf, 4321)


def test_token_ids_replace_the_entries():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    assert [token for token, _ in likeliest_tokens(logits, 2, [30, 10, 20])[0]] == [10, 20]


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_a_compiler_torch_says_the_same(dtype, monkeypatch):
    logits = torch.randn(4, 9000, generator=torch.Generator().manual_seed(1)).mul(3).to(dtype)
    compiled = likeliest_tokens(logits, 8)
    top_native.top_kernel.cache_clear()
    monkeypatch.setattr(kernel.shutil, "which", lambda name: None)
    assert top_native.native_top(logits, 8, as_log_probabilities=True) is None
    for row, other in zip(likeliest_tokens(logits, 8), compiled, strict=True):
        # which of equal entries are taken is not said by torch
        assert [logp for _, logp in row] == pytest.approx([logp for _, logp in other], abs=2e-6)


# -march and -mno-... are flags of x86 compilers
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86 compilers")
@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_processor_without_wide_vectors(dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_FLAGS", (*kernel._FLAGS, "-march=x86-64"))
    assert_is_the_oracles(torch.randn(3, PART + 700, generator=torch.Generator().manual_seed(2)).mul(3).to(dtype), 8)
