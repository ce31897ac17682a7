"""A request's own budget: it keeps that request's trees small, costs it nothing else, and teaches nobody wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from branchwise.decode.engine import Engine
from branchwise.tune.cost_table import Column, CostTable
from branchwise.tune.shared import SharedBudget
from drafters import RandomTrees, Scripted
from engine_rig import PROMPTS, alone, model, outputs, request, run, small_engine

pytestmark = pytest.mark.core


FLAT = CostTable((Column(64, (1, 200), (1.0, 1.0)),))


class Counts(Scripted):
    """Knows what will be written; counts the lanes it was asked for."""

    def __init__(self) -> None:
        super().__init__({PROMPTS[prompt]: alone(prompt, None) for prompt in range(len(PROMPTS))})
        self.started = 0
        self.budgets: list[int] = []

    def start(self, context):
        self.started += 1
        return super().start(context)

    def propose(self, states, contexts, budgets):
        self.budgets.extend(budgets)
        return super().propose(states, contexts, budgets)


@pytest.mark.parametrize("budget", [9, "auto", SharedBudget(table=FLAT)], ids=["fixed", "auto", "auto, known costs"])
def test_every_request_has_trees_of_its_own_size_and_the_text_it_has_alone(budget):
    drafter = Counts()
    engine = small_engine(drafter=drafter, budget=budget, clock=count().__next__)  # every step costs the same
    asked = {3: None, 1: 1, 2: 4, 6: 1}
    handles = [engine.submit(request(prompt, budget=own)) for prompt, own in asked.items()]
    run(engine)
    assert outputs(handles) == [alone(prompt, None) for prompt in asked]
    largest = [max(len(record.draft.tree) for record in handle.records) for handle in handles]
    assert largest[0] > 4 and largest[1] == largest[3] == 1 and 1 < largest[2] <= 4
    assert drafter.started == 2, "who decodes plainly is not drafted for"


def test_a_budget_does_not_raise_the_engines_own():
    drafter = Counts()
    engine = small_engine(drafter=drafter, budget=3)
    handle = engine.submit(request(3, budget=20))
    run(engine)
    assert set(drafter.budgets) == {3} and outputs([handle]) == [alone(3, None)]


def test_plain_requests_teach_budget_auto_nothing():
    """Their lone roots would look like trees of which nothing was accepted."""
    policy = SharedBudget(table=FLAT)
    engine = small_engine(drafter=RandomTrees(), budget=policy)
    engine.submit(request(3, budget=1))
    run(engine)
    assert policy._choice._step == 0
    engine.submit(request(3))
    run(engine)
    assert policy._choice._step > 0


def test_no_nodes_at_all_is_refused():
    with pytest.raises(ValueError, match=r"it must be >= 1 \(1 is plain decoding\), got 0"):
        small_engine().submit(request(1, budget=0))


def test_a_handle_has_one_step_for_every_run_of_tokens():
    engine = Engine(model(), drafter=RandomTrees(), budget=7, max_lanes=2, pool_tokens=256, prefix_bytes=0)
    engine.pool.block_rows, engine.pool.blocks = 8, 13  # somebody has to make room and comes back
    handles = [engine.submit(request(prompt)) for prompt in (3, 2)]
    seen = [list(handle.records) for handle in handles]
    run(engine)
    assert seen == [[], []] and sum(handle.preemptions for handle in handles) > 0
    for handle in handles:
        assert [record.tokens for record in handle.records] == list(handle)
        assert len(handle.seconds) == len(handle.records)
        assert handle.result(timeout=0).records == tuple(handle.records)
        assert replace(handle.records[0]).output is None, "tensors of a step are not kept"


class SlowLearner(SharedBudget):
    """Learning takes it a thousand seconds."""

    spent = 0.0

    def learn_shares(self, *what):
        self.spent += 1000.0
        super().learn_shares(*what)


def test_the_seconds_of_a_step_hold_what_the_budget_takes_to_learn():
    policy, looks = SlowLearner(table=FLAT), count()
    engine = small_engine(drafter=RandomTrees(), budget=policy, clock=lambda: policy.spent + next(looks))
    handle = engine.submit(request(3))
    run(engine)
    assert outputs([handle]) == [alone(3, None)]
    assert all(1000 < step.other < 1100 for step in handle.seconds)
