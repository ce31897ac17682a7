"""How many levels a tree gets: by a clock of the test's own, and in an EAGLE drafter."""

from __future__ import annotations

import pytest
from eagle_folders import eagle3

from branchwise import Speculator
from branchwise.draft.eagle import MOST_LEVELS, EagleDrafter
from branchwise.draft.levels import FIRST_FULL, FULL_EVERY, LevelRule
from oracles import greedy_by_recompute
from zoo import tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def depths_of(steps, *, level, forward, accept, promise=lambda depth: 1.0, most=6):
    """Levels run in each of so many steps.

    Every level takes ``level`` seconds and the target ``forward``; a draft's nodes are right down to depth
    ``accept(step)``.
    """
    clock = Clock()
    rule = LevelRule(clock)
    depths = []
    for step in range(steps):
        rule.begin()
        promised = []
        depth = 1
        while True:
            clock.now += level
            rule.ran(depth)
            if depth == most or not rule.pays(depth + 1, [promise(depth)]):
                break
            promised.append(promise(depth))
            depth += 1
        depths.append(depth)
        right = min(accept(step), depth)
        rule.learn(promised, [d <= right for d in range(2, depth + 1)])
        clock.now += forward
        rule.verified(right + 1)
    return depths


def test_cheap_levels_that_are_right_are_all_run():
    assert set(depths_of(60, level=0.001, forward=1.0, accept=lambda step: 6)) == {6}


def test_levels_that_never_bring_anything_are_left_out_but_for_a_look_now_and_then():
    depths = depths_of(300, level=0.1, forward=1.0, accept=lambda step: 1)
    assert depths[:FIRST_FULL] == [6] * FIRST_FULL
    full = [step for step, depth in enumerate(depths[150:]) if depth == 6]
    assert len(full) <= 150 / FULL_EVERY + 1
    assert all(depth == 1 for step, depth in enumerate(depths[150:]) if step not in full)


def test_the_deeper_the_cheaper_forwards_cost():
    """One token in two is right at every depth: a level pays while 0.5^d tokens are worth its time."""

    def halves(step):
        return next((depth for depth in range(6) if (step >> depth) & 1), 6)

    slow, fast = (
        depths_of(400, level=0.1, forward=forward, accept=halves, promise=lambda depth: 0.5**depth)[100:]
        for forward in (3.0, 0.1)
    )
    assert sum(fast) / len(fast) < 2.2 < 3.0 < sum(slow) / len(slow)


def test_what_the_frontier_promises_decides_step_by_step():
    clock = Clock()
    rule = LevelRule(clock)
    for _ in range(FIRST_FULL + 1):
        rule.begin()
        for depth in (1, 2):
            clock.now += 0.1
            rule.ran(depth)
        rule.learn([0.5], [True])
        clock.now += 1.0
        rule.verified(2)
    rule.begin()
    assert rule.pays(2, [0.9]) and not rule.pays(2, [0.01])
    assert rule.pays(2, [0.01] * 60), "all lanes share the forward"


def test_a_drafter_learns_to_draft_flat_and_the_output_stays(tmp_path):
    """The head is random, so nothing below the root's children is ever right."""
    model = tiny_llama(num_hidden_layers=6)
    drafter = EagleDrafter.load(eagle3().write(tmp_path), model)
    ticks = iter(range(10**9))
    drafter._levels = LevelRule(lambda: float(next(ticks)))
    output = Speculator(model, drafter=drafter, budget=330).complete(PROMPT, max_new_tokens=40, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 40)
    heights = [record.draft.tree.height for record in output.records]
    assert heights[0] == MOST_LEVELS and max(heights[-25:-7]) < MOST_LEVELS


def test_a_depth_is_a_number_or_auto(tmp_path):
    model = tiny_llama(num_hidden_layers=6)
    folder = eagle3().write(tmp_path)
    with pytest.raises(ValueError, match="number of levels or 'auto'"):
        EagleDrafter.load(folder, model, depth="deep")
    with pytest.raises(ValueError, match="depth >= 1"):
        EagleDrafter.load(folder, model, depth=0)
