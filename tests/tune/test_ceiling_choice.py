"""Whether and how much to draft, from ratios of the same steps; probes cost a hundredth of the time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from branchwise.tune.ceiling import PROBE_EVERY, PROBE_SHARE, CeilingChoice

pytestmark = pytest.mark.core


def run(choice: CeilingChoice, steps: int, tokens: dict[int, float]) -> list[int]:
    """Steps without luck: a ceiling always gives the same."""
    picked = []
    for _ in range(steps):
        size = choice.pick()
        sizes = [candidate for candidate in choice.candidates if candidate <= size]
        choice.learn([tokens[candidate] for candidate in sizes], sizes)
        picked.append(size)
    return picked


def made(seconds: dict[int, float], first: list[int]) -> CeilingChoice:
    return CeilingChoice(tuple(seconds), first, lambda size, nodes: seconds[size])


def test_first_what_was_ordered_then_the_best_rate():
    choice = made({1: 1, 5: 1.2, 9: 2}, first=[9, 9])
    picked = run(choice, 100, {1: 1, 5: 2, 9: 2.2})
    assert picked[:2] == [9, 9]
    assert picked[2:].count(5) > 90
    assert choice.rates() == {1: 1.0, 5: pytest.approx(2 / 1.2), 9: pytest.approx(1.1)}


@pytest.mark.parametrize("seconds", [{1: 1, 5: 1.001}, {1: 1, 5: 1.25}, {1: 1, 5: 4}], ids=str)
def test_probes_cost_little(seconds):
    """Nothing is accepted."""
    picked = run(made(seconds, first=[5] * 3), 2000, {1: 1, 5: 1})[3:]
    probes = [step for step, size in enumerate(picked) if size == 5]
    assert probes, "it looks again"
    assert all(later - earlier >= PROBE_EVERY for earlier, later in pairwise(probes))
    lost = sum(seconds[size] - 1 for size in picked)
    assert lost <= 1.2 * PROBE_SHARE * 2000 + seconds[5]


def test_a_probe_that_pays_brings_the_trees_back():
    choice = made({1: 1, 9: 1.2}, first=[9] * 4)
    run(choice, 200, {1: 1, 9: 1})
    picked = run(choice, 200, {1: 1, 9: 5})
    back = picked.index(9)
    assert back <= 40
    assert picked[back + 3 * PROBE_EVERY :].count(9) > 100


def test_a_dear_probe_is_made_in_the_end():
    picked = run(made({1: 1, 9: 6}, first=[9] * 2), 1500, {1: 1, 9: 1})
    assert 1 <= picked[2:].count(9) <= 4


@pytest.mark.parametrize("candidates", [(), (5, 9), (1, 9, 5), (1, 5, 5), (0, 1)], ids=str)
def test_candidates_that_do_not_start_with_plain_decoding_or_do_not_rise_are_refused(candidates):
    with pytest.raises(ValueError, match="increasing and start with 1"):
        CeilingChoice(candidates, (), lambda size, nodes: 1.0)


def test_in_the_first_steps_nothing_larger_is_tried_once_a_ceiling_is_far_too_slow():
    picked = run(made({1: 1, 5: 3, 9: 6, 17: 12}, first=[1, 5, 5, 9, 9, 17, 17]), 60, {1: 1, 5: 1, 9: 1, 17: 1})
    assert picked[:8] == [1, 5, 5, 1, 1, 1, 1, 1]
    assert 17 not in picked


def test_what_a_ceiling_costs_is_what_it_costs_now():
    """One look at the price is enough, however often a better one was believed."""
    seconds = {1: 1.0, 5: 1.1}
    choice = made(seconds, first=[5] * 5)
    assert run(choice, 40, {1: 1, 5: 1.5})[-1] == 5
    seconds[5] = 2.0
    assert run(choice, 5, {1: 1, 5: 1.5}) == [1] * 5


def test_a_probe_that_is_promising_is_repeated_at_once():
    choice = made({1: 1, 5: 1.01}, first=[5] * 3)
    run(choice, 60, {1: 1, 5: 1})
    while (size := choice.pick()) == 1:
        choice.learn([1], [1])
    choice.learn([1, 1], [1, 5], promising=True)
    assert (size, choice.pick()) == (5, 5)


def test_of_two_as_good_the_smaller_one_is_taken():
    for gain, taken in ((0.009, 9), (0.03, 17)):
        picked = run(made({1: 1, 9: 1, 17: 1}, first=[17] * 3), 40, {1: 1.0, 9: 2.0, 17: 2.0 + gain})
        assert picked[3:].count(taken) >= 33, "the others are probes"


def test_a_promising_probe_is_not_repeated_where_trees_are_drafted_anyway():
    choice = made({1: 1, 5: 1, 9: 1}, first=[9] * 3)
    given = {1: 1, 5: 2, 9: 2}
    run(choice, 3, given)
    picked = []
    for _ in range(6 * PROBE_EVERY):
        picked.append(choice.pick())
        sizes = [size for size in given if size <= picked[-1]]
        choice.learn([given[size] for size in sizes], sizes, promising=True)
    probes = [step for step, size in enumerate(picked) if size != 5]
    assert probes and all(later - earlier >= PROBE_EVERY for earlier, later in pairwise(probes))
