"""Budget "auto" on a simulated clock: near the best fixed budget on every text and machine, never below plain."""

from __future__ import annotations

from functools import cache
from statistics import mean
from types import SimpleNamespace

import pytest
import torch

from branchwise.tune.budget import FixedBudget, make_budget
from branchwise.tune.shared import SharedBudget
from replay_rig import FORWARDS, Machine, Replay, cheap_draft, costly_draft, invented_text, recorded_texts, step_of

pytestmark = pytest.mark.core

FIXED = (1, 3, 5, 9, 17, 33)
RECORDED = recorded_texts()
INVENTED = {
    "copied": invented_text(0.9),
    "good": invented_text(0.6),
    "slight": invented_text(0.2),
    "hopeless": invented_text(0.0),
    "boasting": invented_text(0.25, boast=3.0),
    "modest": invented_text(0.8, boast=0.6),
    "untold": invented_text(0.6, told=False),
    "changing": invented_text(0.9, 150) + invented_text(0.0, 150) + invented_text(0.5, 150, seed=1),
}
TEXTS = RECORDED | INVENTED
TOKENS = 800


@cache
def best_fixed(text: str, forward: str, draft=cheap_draft) -> tuple[float, float]:
    """Tokens per second of the best fixed budget, and of plain decoding."""
    machine = Machine(FORWARDS[forward], draft)
    rates = {n: Replay(TEXTS[text], machine, noise=0.0).run(FixedBudget(n), TOKENS) for n in FIXED}
    return max(rates.values()), rates[1]


def auto_rate(text: str, forward: str, tabled: bool, draft=cheap_draft, seeds: int = 2) -> float:
    machine = Machine(FORWARDS[forward], draft)
    rates = []
    for seed in range(seeds):
        policy = SharedBudget(table=machine.table() if tabled else None)
        rates.append(Replay(TEXTS[text], machine, seed).run(policy, TOKENS))
    return mean(rates)


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("text", TEXTS)
def test_within_five_percent_of_the_best_fixed_budget_and_never_slower_than_plain(text, forward):
    """With a measured curve, from the first step on: learning what drafts are worth is counted."""
    best, plain = best_fixed(text, forward)
    rate = auto_rate(text, forward, tabled=True)
    assert rate >= 0.95 * best
    assert rate >= 0.98 * plain


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_machine_it_has_never_seen_is_learned_while_decoding(text, forward):
    """Two steps at every size come first, once per machine and model; they are counted."""
    best, plain = best_fixed(text, forward)
    rate = auto_rate(text, forward, tabled=False)
    assert rate >= 0.85 * best, "0.92 and more on most"
    assert rate >= 0.97 * plain


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("text", ["copied", "good", "slight", "hopeless", "boasting"])
def test_a_drafter_that_costs_forwards_is_left_alone_where_it_does_not_pay(text, forward):
    best, plain = best_fixed(text, forward, costly_draft)
    rate = auto_rate(text, forward, tabled=True, draft=costly_draft)
    assert rate >= 0.93 * best
    assert rate >= 0.95 * plain


@pytest.mark.parametrize("tabled", [True, False], ids=["known machine", "new machine"])
@pytest.mark.parametrize("forward", FORWARDS)
def test_plain_decoding_within_sixteen_steps_where_nothing_is_accepted_and_few_probes(forward, tabled):
    machine = Machine(FORWARDS[forward], cheap_draft)
    policy = SharedBudget(table=machine.table() if tabled else None)
    world = Replay(TEXTS["hopeless"], machine, noise=0.0)
    world.run(policy, 16)
    world.run(policy, 500)
    steps = list(zip(world.budgets, world.nodes, strict=True))
    seconds = [machine.draft(budget) + machine.forward(nodes) for budget, nodes in steps[16:48]]
    plain = machine.forward(1) + machine.draft(1)
    assert sum(seconds) <= 1.04 * 32 * plain, "where nodes are all but free, a few may still be tried"
    assert world.nodes[16:].count(1) >= 400, "a probe that is cheap may be made every twelfth step"
    assert world.tokens / world.seconds >= 0.97 / plain


def two_passes(nodes: int) -> float:
    """The native engine: weights are read once, and unpacked and multiplied once more for every 32 nodes."""
    return (8.7 + 0.09 * nodes + 5.0 * ((nodes - 1) // 32)) / 1000


@pytest.mark.parametrize("tabled", [True, False], ids=["known machine", "new machine"])
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_node_more_than_a_pass_over_the_weights_serves_is_not_asked_for(lanes, tabled):
    """Not once it is known what nodes bring: 33 to 40 nodes never pay where 32 are as good but for one node's luck."""
    machine = Machine(two_passes, cheap_draft)
    table = machine.table(nodes=(1, 8, 16, 32, 64)) if tabled else None
    policy = SharedBudget(32, table=table, rows_at_once=32)
    texts = [invented_text(0.85, seed=lane) for lane in range(lanes)]
    sizes, at = [], [0] * lanes
    for _ in range(300):
        positions = [text[place % len(text)] for text, place in zip(texts, at, strict=True)]
        numbers = list(range(lanes))
        ceilings = policy.ceilings(numbers, 300.0)
        drafts = [position.draft(budget) for position, budget in zip(positions, ceilings, strict=True)]
        drafts = policy.divide(numbers, drafts)
        verdicts = [position.verdict(draft) for position, draft in zip(positions, drafts, strict=True)]
        sizes.append(sum(len(draft.tree) for draft in drafts))
        policy.learn_shares(numbers, drafts, verdicts, step_of(two_passes(sizes[-1]), cheap_draft(sum(ceilings))))
        at = [place + len(verdict.path) for place, verdict in zip(at, verdicts, strict=True)]
    settled = sizes[100:]
    assert not [size for size in settled if 33 <= size <= 40]
    assert max(settled) > 16


def test_auto_asks_the_target_how_many_rows_it_takes_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    target = SimpleNamespace(device=torch.device("cpu"), vocab_size=37)
    assert make_budget("auto", target).largest == 33
    target.rows_at_once = 32
    assert make_budget("auto", target).largest == 32
