"""Drawing children: the law of the tokens is that of the vector handed over with them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import permutations

import pytest
import torch
from torch import Tensor

from branchwise.losslessness import Plain, outcomes
from branchwise.verify import SeededCoins, draw_with_replacement, draw_without_replacement, masked, sample_children

pytestmark = pytest.mark.core

JUST_UNDER_ONE = 1.0 - 2.0**-53
WEIGHTS = (4, 0, 3, 2, 1)


class Scripted(SeededCoins):
    """Uniform draws from a list."""

    def __init__(self, draws: list[float]) -> None:
        super().__init__(0)
        self._draws_left = list(draws)

    def uniform(self) -> float:
        return self._draws_left.pop(0)


def in_sequence(order: tuple[int, ...]) -> Fraction:
    """The oracle: the product of renormalised weights."""
    left, chance = Fraction(sum(WEIGHTS)), Fraction(1)
    for token in order:
        chance *= WEIGHTS[token] / left
        left -= WEIGHTS[token]
    return chance


def test_enumerated_draws_have_the_sequential_law() -> None:
    law = Plain([Fraction(weight, 10) for weight in WEIGHTS])
    for k in (1, 2, 3):
        seen = Counter()
        for tokens, weight in outcomes(lambda coins, k=k: draw_without_replacement(law, k, coins)):
            seen[tokens] += weight
        assert seen == {order: in_sequence(order) for order in permutations((0, 2, 3, 4), k)}


def test_the_quick_draw_inverts_the_same_law() -> None:
    """A grid over both coins: every cell of 1/90 x 1/90 lies inside one outcome, so counts are exact."""
    vector = torch.tensor(WEIGHTS, dtype=torch.float64) / 10
    n = 2520  # divisible by every remaining sum of weights: 10, 6, 7, 8, 9
    grid = [(i + 0.5) / n for i in range(n)]
    for first in grid[:: n // 10]:
        pairs = Counter(draw_without_replacement(vector, 2, Scripted([first, second])) for second in grid)
        (taken,) = {pair[0] for pair in pairs}
        for (_, second), count in pairs.items():
            assert count == n * WEIGHTS[second] // (10 - WEIGHTS[taken])
    firsts = Counter(draw_without_replacement(vector, 1, Scripted([u]))[0] for u in grid)
    assert firsts == {token: n * weight // 10 for token, weight in enumerate(WEIGHTS) if weight}


@pytest.mark.parametrize("u", [0.0, 0.5, JUST_UNDER_ONE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extreme_coins_draw_the_whole_support_once(u: float, dtype: torch.dtype) -> None:
    vector = torch.tensor([0.0, 0.3, 0.0, 1e-12, 0.6, 0.1, 0.0]).to(dtype)

    class Always(Scripted):
        def uniform(self) -> float:
            return u

    tokens = draw_without_replacement(vector, 7, Always([]))
    assert sorted(tokens) == [1, 3, 4, 5], "fewer children than asked for, never a filler"


def test_quick_and_slow_draws_agree_coin_by_coin() -> None:
    generator = torch.Generator().manual_seed(3)
    for trial in range(50):
        vector = torch.rand(40, generator=generator) ** 4
        draws = torch.rand(6, generator=generator, dtype=torch.float64).tolist()
        quick = draw_without_replacement(vector, 6, Scripted(draws))
        rest, slow = vector.double(), []
        for u in draws:
            slow.append(int((rest.cumsum(0) / rest.sum() > u).nonzero()[0]))
            rest[slow[-1]] = 0.0
        assert quick == tuple(slow), trial


def test_rare_tokens_keep_their_law_after_the_common_ones_are_taken() -> None:
    """What is left is 4e-16 of the whole: as a difference it would have no digits, and the third child no law."""
    vector = torch.tensor([0.7, 0.3, 1e-16, 3e-16], dtype=torch.float64)
    thirds = [draw_without_replacement(vector, 3, SeededCoins(seed))[2] for seed in range(400)]
    assert set(thirds) == {2, 3}
    assert abs(thirds.count(2) - 100) < 6 * (400 * 0.25 * 0.75) ** 0.5
    tiny = torch.tensor([1.0, 4e-310], dtype=torch.float64)
    assert draw_without_replacement(tiny, 2, SeededCoins(0)) == (0,), "no mass that could be divided by"


def test_children_come_with_the_very_vector() -> None:
    vector = torch.tensor([0.25, 0.25, 0.5])
    tokens, proposal = sample_children(vector, 2, SeededCoins(1).drafting())
    assert proposal.vector is vector
    assert not proposal.replacement
    assert len(set(tokens)) == 2
    tokens, proposal = sample_children(vector, 9, SeededCoins(1).drafting(), replacement=True)
    assert proposal.replacement
    assert len(tokens) == 9
    assert draw_with_replacement(vector, 9, SeededCoins(1).drafting()) == tokens


def test_masking_happens_before_drawing_and_may_leave_nothing() -> None:
    vector = torch.tensor([0.25, 0.25, 0.5])
    rest = masked(vector, [2])
    assert isinstance(rest, Tensor)
    assert rest.tolist() == [0.5, 0.5, 0.0]
    assert vector.tolist() == [0.25, 0.25, 0.5]
    assert masked(vector, [0, 1, 2]) is None
