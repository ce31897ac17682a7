"""Seeded coins: where a draw is made decides it, and `choose` never returns a token that cannot happen."""

from __future__ import annotations

import math
from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from branchwise.verify import SeededCoins, choose

pytestmark = pytest.mark.core

JUST_UNDER_ONE = 1.0 - 2.0**-53
WEIGHTS = st.one_of(
    st.just(0.0), st.floats(0.0, 1.0), st.just(5e-324), st.just(1e-310), st.just(0.25), st.floats(1e-12, 1e-6)
)
VECTORS = st.lists(WEIGHTS, min_size=1, max_size=9).filter(any)
COINS = st.one_of(st.just(0.0), st.just(JUST_UNDER_ONE), st.floats(0.0, JUST_UNDER_ONE))


def first_above(weights: list[float], u: float) -> int:
    """The oracle: walk the cumulative sum of exact rationals."""
    exact = [Fraction(w) for w in weights]
    total, target, held = sum(exact), Fraction(u), Fraction(0)
    for token, weight in enumerate(exact):
        held += weight
        if held > target * total:
            return token
    raise AssertionError("u < 1 always lands")


@given(VECTORS, COINS)
def test_choose_is_the_inverse_cumulative_law(weights: list[float], u: float) -> None:
    token = choose(torch.tensor(weights, dtype=torch.float64), u)
    assert weights[token] > 0
    expected = first_above(weights, u)
    if token != expected:  # only a border blurred by rounding may move the token
        low, high = sorted((token, expected))
        assert math.isclose(sum(weights[: low + 1]) / sum(weights), u, rel_tol=1e-12, abs_tol=1e-12)
        assert sum(weights[low + 1 : high]) <= 1e-12 * sum(weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_choose_at_the_two_ends(dtype: torch.dtype) -> None:
    vector = torch.tensor([0.0, 0.0, 0.5, 0.0, 0.5, 0.0], dtype=dtype)
    assert choose(vector, 0.0) == 2
    assert choose(vector, JUST_UNDER_ONE) == 4
    assert choose(vector, 0.5) == 4  # [0.5, 1) belongs to the second token
    assert choose(vector, math.nextafter(0.5, 0.0)) == 2


def test_choose_does_not_need_a_normalised_vector() -> None:
    vector = torch.tensor([3.0, 1.0])
    assert [choose(vector, u) for u in (0.0, 0.74, 0.76, JUST_UNDER_ONE)] == [0, 0, 1, 1]
    tiny = torch.tensor([5e-324, 0.0, 5e-324], dtype=torch.float64)
    assert [choose(tiny, u) for u in (0.0, 0.49, 0.51, JUST_UNDER_ONE)] == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("weights", "word"),
    [
        ([0.5, math.nan], "NaN"),
        ([math.nan, math.nan], "NaN"),
        ([0.5, -0.1, 0.6], "negative"),
        ([0.0, 0.0], "zero everywhere"),
        ([1.0, math.inf], "infinite"),
    ],
)
def test_choose_refuses_what_is_no_law(weights: list[float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        choose(torch.tensor(weights), 0.3)


def test_kth_choice_of_a_step_is_the_first_choice_of_a_later_step() -> None:
    """This is what makes match equal plain sampling: one choice per token, wherever the steps begin."""
    vector = torch.full((1000,), 1e-3)
    coins = SeededCoins(7)
    run = coins.at(40)
    in_one_step = [run.choice(vector) for _ in range(8)]
    assert in_one_step == [coins.at(40 + k).choice(vector) for k in range(8)]
    assert len(set(in_one_step)) > 4


def test_bernoulli_and_draft_draws_do_not_disturb_choices() -> None:
    vector = torch.full((1000,), 1e-3)
    quiet, busy = SeededCoins(7).at(3), SeededCoins(7).at(3)
    drafting = busy.drafting()
    for _ in range(5):
        busy.bernoulli(0.5)
        drafting.choice(vector)
        assert quiet.choice(vector) == busy.choice(vector)


def test_streams_differ_by_every_part_of_the_key() -> None:
    def draws(coins: SeededCoins) -> tuple[float, ...]:
        return tuple(coins.uniform() for _ in range(4))

    base = SeededCoins(1, 2, 3)
    others = [SeededCoins(2, 2, 3), SeededCoins(1, 3, 3), SeededCoins(1, 2, 4), SeededCoins(1, 2, 3).drafting()]
    seen = {draws(base)} | {draws(other) for other in others}
    assert len(seen) == 5
    assert draws(SeededCoins(1, 2, 3)) in seen
    # a draft of the next step must not reuse the draws of this one (its positions overlap)
    now, then = SeededCoins(1).at(10).drafting(), SeededCoins(1).at(11).drafting()
    assert not {now.uniform() for _ in range(50)} & {then.uniform() for _ in range(50)}


def test_no_seed_is_fresh_entropy_and_bad_seeds_raise() -> None:
    assert SeededCoins().seed != SeededCoins().seed
    assert SeededCoins(0).uniform() == SeededCoins(0).uniform()
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match=r"\[0, 2\*\*64\)"):
            SeededCoins(seed)


def test_draws_are_uniform_and_neighbours_independent() -> None:
    """Chi-square over single draws and pairs of neighbours, by position, seed, counter and row; 8 sigma each."""
    vector = torch.full((4096,), 1.0 / 4096)
    n = 20_000
    by_position = [SeededCoins(5).at(p).choice(vector) / 4096 for p in range(n // 4)]
    by_seed = [SeededCoins(s).uniform() for s in range(n)]
    counter = SeededCoins(9)
    by_counter = [counter.uniform() for _ in range(n)]
    by_row = [SeededCoins(5, r).uniform() for r in range(n)]
    for stream in (by_position, by_seed, by_counter, by_row):
        draws = torch.tensor(stream, dtype=torch.float64)
        assert float(draws.min()) >= 0.0
        assert float(draws.max()) < 1.0
        for cells, values in ((64, draws), (256, (draws[:-1] * 16).floor() / 16 + draws[1:] / 16)):
            counts = torch.bincount((values * cells).long(), minlength=cells).double()
            expected = len(values) / cells
            chi_square = float(((counts - expected) ** 2 / expected).sum())
            assert abs(chi_square - (cells - 1)) < 8 * math.sqrt(2 * (cells - 1))


def test_a_coin_of_exactly_zero_accepts_nothing_of_probability_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    coins = SeededCoins(1)
    monkeypatch.setattr(SeededCoins, "uniform", lambda self: 0.0)
    assert not coins.bernoulli(0.0)
    assert coins.bernoulli(5e-324)


def test_bernoulli_is_strict() -> None:
    coins = SeededCoins(1)
    assert not any(coins.bernoulli(0.0) for _ in range(1000))
    assert all(coins.bernoulli(1.0) for _ in range(1000))
    hits = sum(coins.bernoulli(0.25) for _ in range(4000))
    assert abs(hits - 1000) < 8 * math.sqrt(4000 * 0.25 * 0.75)
