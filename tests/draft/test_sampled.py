"""Sampled drafts carry the vector they were drawn from, and the whole loop keeps the target's law: by enumeration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from branchwise import Speculator
from branchwise.decode.request import Request
from branchwise.decode.session import Session
from branchwise.decode.stopping import StopRules
from branchwise.draft.protocol import DraftContext
from branchwise.draft.sampled import SampledDrafter
from branchwise.losslessness import outcomes
from branchwise.target import HuggingFaceTarget
from branchwise.tune.budget import FixedBudget
from branchwise.verify import ONE_HOT, SeededCoins
from branchwise.verify.registry import RULES
from branchwise.verify.sampler import Sampler
from oracles import logits_by_recompute
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = (1, 3, 2)


class Estimates:
    """A drafter of fixed estimates, far from any target's law."""

    name = "fixed"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, estimates):
        self._estimates = estimates

    def start(self, context):
        return None

    def begin(self, states, contexts, budgets):
        pass

    def candidates(self, state, path, least):
        return [(token, estimate, "fixed") for token, estimate in self._estimates.items()]

    def observe(self, states, records):
        pass

    def finish(self, state):
        pass


def _draft(budget=9, seed=0, max_depth=None, estimates=None, width=3, grammar=None):
    estimates = estimates or {3: 0.4, 7: 0.2, 1: 0.1, 40: 0.1, 9: 0.0}
    drafter = SampledDrafter(Estimates(estimates), width=width)
    coins = SeededCoins(seed).drafting()
    context = DraftContext([5], VOCAB, max_depth=max_depth, coins=coins, grammar=grammar)
    (draft,) = drafter.propose([None], [context], [budget])
    return draft


def test_children_come_from_the_vector_they_carry():
    for seed in range(20):
        draft = _draft(seed=seed)
        assert 1 < len(draft.tree) <= 9
        for node in range(len(draft.tree)):
            children = draft.tree.children(node)
            vectors = [draft.proposal(child).vector for child in children]
            assert all(vector is vectors[0] for vector in vectors), "one vector per parent, not a copy per child"
            tokens = [draft.tree.tokens[child] for child in children]
            assert len(set(tokens)) == len(tokens)
            if children:
                assert float(vectors[0].sum()) == pytest.approx(1.0)
                # token 40 is outside the vocabulary and 9 has no estimate: neither is in the vector
                assert set(vectors[0].nonzero().flatten().tolist()) == {1, 3, 7}
                assert set(tokens) <= {1, 3, 7}


def test_depth_and_budget_are_kept_and_the_coins_decide():
    assert _draft(max_depth=1).tree.height == 1
    assert len(_draft(budget=1).tree) == 1
    assert _draft(seed=4).tree == _draft(seed=4).tree
    assert len({_draft(seed=seed).tree for seed in range(12)}) > 4


def test_a_token_that_a_grammar_forces_needs_no_source_and_no_draw():
    grammar = SimpleNamespace(allows=lambda path, token: token == 9, forced=lambda path: 9 if len(path) < 4 else None)
    draft = _draft(seed=0, grammar=grammar)
    assert draft.tree.tokens[1:5] == (9, 9, 9, 9)
    assert all(draft.proposal(node) is ONE_HOT for node in range(1, 5))


def test_a_grammar_is_masked_out_before_the_draw():
    grammar = SimpleNamespace(allows=lambda path, token: token != 3, forced=lambda path: None)
    for seed in range(10):
        draft = _draft(seed=seed, grammar=grammar)
        assert 3 not in draft.tree.tokens[1:]
        assert float(draft.proposal(1).vector[3]) == 0.0


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="width 0"):
        SampledDrafter(Estimates({}), width=0)
    with pytest.raises(ValueError, match="sharpness must be > 0, got -1"):
        SampledDrafter(Estimates({}), sharpness=-1)


class Scripted:
    """Enumerating coins as a lane holds them: the same coins at every position, for drafting and for verifying."""

    def __init__(self, coins):
        self._coins = coins

    def at(self, position):
        return self

    def drafting(self):
        return self._coins

    def __getattr__(self, name):
        return getattr(self._coins, name)


@pytest.mark.parametrize("rule", ["match", "rejection", "traversal"])
@pytest.mark.parametrize("family", [SUPPORTED[0], SUPPORTED[6]], ids=lambda family: family.name)
def test_the_whole_loop_keeps_the_targets_law(family, rule):
    """Every draft and every coin of two emitted tokens, through the real target and cache, against plain laws."""
    model = build(family, vocab_size=4, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    target = HuggingFaceTarget(model)
    stop = StopRules(max_new_tokens=2)

    def play(coins):
        drafter = SampledDrafter(Estimates({0: 0.5, 1: 0.3, 3: 0.2}), width=2)
        session = Session(target, drafter, FixedBudget(4))
        lane = session.add(Request(PROMPT, Sampler(do_sample=True), stop), RULES[rule].make())
        lane.coins = Scripted(coins)
        while session.active:
            session.step()
        return tuple(lane.generated)

    law: dict[tuple[int, ...], float] = {}
    for tokens, weight in outcomes(play):
        law[tokens] = law.get(tokens, 0.0) + float(weight)

    first = torch.softmax(logits_by_recompute(model, list(PROMPT))[-1], 0)
    distance = 0.0
    for a in range(4):
        second = torch.softmax(logits_by_recompute(model, [*PROMPT, a])[-1], 0)
        for b in range(4):
            distance += abs(law.get((a, b), 0.0) - float(first[a] * second[b]))
    assert sum(law.values()) == pytest.approx(1.0)
    # the first token's law is exact to rounding; norms of some families compute in float32
    assert distance / 2 < (1e-12 if family.model_type == "llama" else 1e-6)


def test_auto_takes_traversal_for_sampled_drafts_and_match_with_a_seed(monkeypatch):
    used = []
    for name in ("match", "traversal"):
        rule = RULES[name].make
        monkeypatch.setitem(
            RULES,
            name,
            SimpleNamespace(**{**vars(RULES[name]), "make": lambda rule=rule, name=name: used.append(name) or rule()}),
        )
    speculator = Speculator(tiny_llama(), drafter="sampled", budget=5)
    speculator.complete([1, 2, 3], max_new_tokens=3, do_sample=True)
    speculator.complete([1, 2, 3], max_new_tokens=3, do_sample=True, seed=1)
    assert used == ["traversal", "match"]


def test_greedy_output_does_not_depend_on_sampled_drafts():
    model = tiny_llama()
    plain = Speculator(model, drafter="none").complete([4, 5, 6], max_new_tokens=30, do_sample=False)
    drafted = Speculator(model, drafter="sampled", budget=9).complete([4, 5, 6], max_new_tokens=30, do_sample=False)
    assert drafted.tokens == plain.tokens
