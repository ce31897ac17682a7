"""Budget "auto" inside the loop: what the session tells it, the stored curve, and a text that never depends on it."""

from __future__ import annotations

import json

import pytest
import torch

from branchwise import Speculator
from branchwise.decode import Engine
from branchwise.decode.session import Session
from branchwise.target import HuggingFaceTarget
from branchwise.tune.budget import FixedBudget
from branchwise.tune.cost_table import Column, CostTable
from branchwise.tune.curve_key import curve_key
from branchwise.tune.curve_store import CurveStore
from branchwise.tune.shared import FIRST_DRAFTED, KEPT_AFTER, SharedBudget
from branchwise.verify.greedy import Greedy
from loop_rig import WildTrees, finish, greedy_request
from oracles import greedy_by_recompute
from zoo import tiny_llama

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    return tmp_path / "cost_curves"


class Recorder(FixedBudget):
    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.learned = []

    def learn(self, nodes, paths, seconds):
        self.learned.append((list(nodes), [tuple(path) for path in paths], seconds.total))


class SharedRecorder(SharedBudget):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.asked, self.learned = [], []

    def ceilings(self, lanes, context=0.0):
        budgets = super().ceilings(lanes, context)
        self.asked.append((list(lanes), context, budgets))
        return budgets

    def learn_shares(self, lanes, drafts, verdicts, seconds):
        self.learned.append((list(lanes), [len(draft.tree) for draft in drafts], [v.path for v in verdicts]))
        super().learn_shares(lanes, drafts, verdicts, seconds)


@pytest.mark.parametrize("make", [lambda: Recorder(11), SharedRecorder], ids=["fixed", "auto"])
def test_the_loop_tells_the_policy_what_a_step_had_and_gave(make):
    model, prompts = tiny_llama(), ([7, 3, 11], [5, 6])
    futures = {tuple(prompt): greedy_by_recompute(model, prompt, 12) for prompt in prompts}
    policy = make()
    session = Session(HuggingFaceTarget(model), WildTrees(futures, right=0.9), policy)
    lanes = [session.add(greedy_request(prompt, 12), Greedy()) for prompt in prompts]
    numbers = [lane.place for lane in lanes]
    finish(session)
    assert sum(len(lane.records) for lane in lanes) == sum(len(told[0]) for told in policy.learned)
    for step, told in enumerate(policy.learned):
        if len(told[0]) < 2:
            break
        records = [lane.records[step] for lane in lanes]
        trees, paths = [len(record.draft.tree) for record in records], [record.verdict.path for record in records]
        assert told[:2] == (trees, paths) if isinstance(policy, Recorder) else told == (numbers, trees, paths)
    if isinstance(policy, SharedRecorder):
        assert policy.asked[0][:2] == (numbers, 2.5), "mean of three and two tokens"


@pytest.mark.parametrize("options", [{}, {"largest": 3}, {"largest": 40}, {"step_nodes": 2}], ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_the_text_does_not_depend_on_the_budgets_chosen(options, known):
    model, prompt = tiny_llama(), torch.tensor([[7, 3, 11]])
    table = CostTable((Column(64, (1, 8, 64), (1e-6, 2e-6, 3e-6)),)) if known else None
    expected = model.generate(prompt, max_new_tokens=60, do_sample=False)
    policy = SharedBudget(table=table, **options)
    assert torch.equal(Speculator(model, budget=policy).generate(prompt, max_new_tokens=60, do_sample=False), expected)


def test_seeded_samples_do_not_depend_on_it_either():
    model, prompt = tiny_llama(), torch.tensor([[7, 3, 11]])
    texts = [
        Speculator(model, drafter=drafter, budget=budget).generate(
            prompt, max_new_tokens=60, do_sample=True, temperature=1.3, seed=5
        )
        for drafter, budget in (("none", 1), ("auto", "auto"), ("auto", 9))
    ]
    assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])


def test_auto_begins_with_the_stored_curve():
    model, prompt = tiny_llama(), torch.tensor([[7, 3, 11]])
    table = CostTable((Column(16, (1, 64), (0.001, 0.001)),))
    CurveStore(curve_key(HuggingFaceTarget(model))).save(table)
    speculator = Speculator(model)
    assert speculator.budget.curve.table == table
    output = speculator.generate(prompt, max_new_tokens=20, do_sample=False, return_dict_in_generate=True)
    first = [len(record.draft.tree) for record in output.branchwise.records[: 1 + FIRST_DRAFTED]]
    assert max(first) > 1, "it drafts at once"
    assert Engine(model).session.budget.curve.table == table


def test_what_steps_cost_is_kept_for_the_next_one(cache):
    model, prompt = tiny_llama(), torch.tensor([[7, 3, 11]])
    speculator = Speculator(model)
    assert speculator.budget.curve.table is None
    for _ in range(60):  # a tree may bring many tokens in one step, and how large it is depends on the clock
        speculator.generate(prompt, max_new_tokens=KEPT_AFTER + 20, do_sample=False)
        if cache.is_dir():
            break
    (file,) = cache.iterdir()
    stored = CostTable.from_dict(json.loads(file.read_text()))
    assert Speculator(model).budget.curve.table == stored
    assert not Speculator(model.float()).budget.curve.table


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "file"))
    model, prompt = tiny_llama(), torch.tensor([[7, 3, 11]])
    expected = model.generate(prompt, max_new_tokens=2 * KEPT_AFTER + 40, do_sample=False)
    output = Speculator(model).generate(prompt, max_new_tokens=2 * KEPT_AFTER + 40, do_sample=False)
    assert torch.equal(output, expected)
