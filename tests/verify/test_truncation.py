"""Fast truncations against transformers' own processors, on whole rows with ties, infinities and one-token support."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from transformers.generation import logits_process as own

from branchwise.verify import truncation

pytestmark = pytest.mark.core

NO_IDS = torch.zeros(1, 1, dtype=torch.long)


def ties_are_stable() -> bool:
    values = torch.zeros(1000)
    return torch.equal(torch.sort(values)[1], torch.arange(1000))


def assert_same(processor: object, scores: Tensor) -> None:
    fast = truncation.fast_equal(processor)
    assert fast is not None
    before = scores.clone()
    ours, theirs = fast(scores), processor(NO_IDS, scores[None].clone())[0]
    assert torch.equal(scores, before), "the input was changed"
    if isinstance(processor, own.TopPLogitsWarper) and not ties_are_stable():
        # the border may fall among equal scores, where their sort order is the machine's: same values, same number
        assert torch.equal(ours.sort().values, theirs.sort().values)
    else:
        assert torch.equal(ours, theirs)


ROWS = st.integers(0, 10_000).flatmap(
    lambda seed: st.tuples(
        st.just(seed), st.sampled_from([1, 2, 7, 300, 4096]), st.sampled_from([0.01, 1.0, 4.0, 30.0]),
        st.sampled_from(["plain", "ties", "banned", "one"]), st.sampled_from([torch.float32, torch.float64]),
    )
)  # fmt: skip


def make_row(seed: int, size: int, spread: float, kind: str, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(size, generator=generator, dtype=torch.float64) * spread
    if kind == "ties":
        row = row.bfloat16()
    row = row.to(dtype)
    if kind == "banned":
        row[torch.rand(size, generator=generator) < 0.7] = -math.inf
        row[seed % size] = 0.0
    if kind == "one":
        row[:] = -math.inf
        row[seed % size] = 1.5
    return row


@settings(max_examples=120, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.05, 0.5, 0.9, 0.95, 0.999]), st.sampled_from([1, 2, 5]))
def test_top_p(row: tuple, top_p: float, min_tokens: int) -> None:
    assert_same(own.TopPLogitsWarper(top_p, min_tokens_to_keep=min_tokens), make_row(*row))


@settings(max_examples=120, deadline=None)
@given(ROWS, st.sampled_from([1, 2, 5, 50, 100_000]))
def test_top_k(row: tuple, k: int) -> None:
    assert_same(own.TopKLogitsWarper(k), make_row(*row))


@settings(max_examples=120, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_min_p(row: tuple, min_p: float) -> None:
    assert_same(own.MinPLogitsWarper(min_p), make_row(*row))


@settings(max_examples=120, deadline=None)
@given(ROWS, st.sampled_from([0.01, 0.2, 0.5, 0.9, 0.999]))
def test_typical(row: tuple, mass: float) -> None:
    assert_same(own.TypicalLogitsWarper(mass), make_row(*row))


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from([0.01, 0.7, 1.0, 3.0]))
def test_temperature(row: tuple, temperature: float) -> None:
    assert_same(own.TemperatureLogitsWarper(temperature), make_row(*row))


def test_top_p_keeps_the_highest_ids_of_a_tied_border() -> None:
    scores = torch.zeros(10)  # ten equal tokens of mass 0.1: 0.35 needs four of them
    assert truncation.keep_top_p(0.35, 1, scores).isfinite().nonzero().flatten().tolist() == [6, 7, 8, 9]


def test_the_quick_look_and_the_whole_sort_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_row(seed, 4096, 3.0, "ties", torch.float32) for seed in range(20)]
    quick = [truncation.keep_top_p(0.9, 1, row) for row in rows]
    monkeypatch.setattr(truncation, "_LOOKS_NATS", ())
    assert all(torch.equal(truncation.keep_top_p(0.9, 1, row), q) for row, q in zip(rows, quick, strict=True))


def test_other_filter_values_and_subclasses_are_left_to_transformers() -> None:
    class Mine(own.TopKLogitsWarper):
        pass

    assert truncation.fast_equal(Mine(5)) is None
    assert truncation.fast_equal(own.TopKLogitsWarper(5, filter_value=-100.0)) is None
    assert truncation.fast_equal(own.MinPLogitsWarper(0.5, min_tokens_to_keep=2)) is None
    assert truncation.fast_equal(own.TypicalLogitsWarper(0.5, min_tokens_to_keep=2)) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_no_scores_are_passed_on(bad: float) -> None:
    scores = torch.tensor([0.0, bad, 1.0])
    fasts = (
        lambda s: truncation.keep_top_k(2, s),
        lambda s: truncation.keep_top_p(0.5, 1, s),
        lambda s: truncation.keep_typical(0.5, s),
    )
    for fast in fasts:
        assert not math.isfinite(float(fast(scores)[1]))
