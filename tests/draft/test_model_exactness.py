"""With a small model in the loop, alone and mixed, in every kind of tree, the output is plain decoding's."""

from __future__ import annotations

import itertools

import pytest
import torch

from branchwise import BranchwiseWarning, Speculator
from branchwise.decode.request import Request
from branchwise.decode.session import Session
from branchwise.decode.stopping import StopRules
from branchwise.draft import DraftContext, DrafterSource, Evidence, MixedDrafter
from branchwise.draft.asking import AskRule
from branchwise.draft.drafter_source import DrafterSourceState
from branchwise.draft.mixture import MixedState
from branchwise.draft.small_model import SmallModelState
from branchwise.losslessness import outcomes
from branchwise.target import HuggingFaceTarget
from branchwise.tune.budget import FixedBudget
from branchwise.verify.proposal import Sampled
from branchwise.verify.registry import RULES
from branchwise.verify.sampler import Sampler
from oracles import greedy_by_recompute, logits_by_recompute
from small_model_rig import KINDS, Always, CacheChecked, mixed_with, small
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
BATCH = torch.tensor([PROMPT, [0, 0, *PROMPT[2:]], [0] * 6 + PROMPT[6:]])
MASK = (torch.arange(9) >= torch.tensor([[0], [2], [6]])).long()
NEW = 20


def near(target, seed=9, step=0.03):
    """A small model that often agrees with the target: its weights, shaken."""
    model = tiny_llama()
    model.load_state_dict(target.state_dict())
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * step)
    return model


@pytest.fixture(scope="module")
def target():
    return tiny_llama()


@pytest.fixture(scope="module")
def greedy(target):
    return [greedy_by_recompute(target, prompt, NEW) for prompt in (PROMPT, PROMPT[2:], PROMPT[6:])]


@pytest.mark.parametrize("where", ["alone", "mixed", "mixed, asked now and then"])
@pytest.mark.parametrize("kind", KINDS)
def test_several_lanes_of_greedy_output_and_a_cache_in_step(target, greedy, kind, where):
    drafter = small(near(target), kind)

    def lane_of(state, context):
        return (state if where == "alone" else state.sources[2].inner).lane, context.tokens

    outer = drafter if where == "alone" else mixed_with(drafter, "y" if where == "mixed" else "ynnyn")
    checked = CacheChecked(outer, drafter, lane_of)
    output = Speculator(target, drafter=checked, budget=9).generate(
        BATCH, attention_mask=MASK, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
    )
    assert output.sequences[:, 9:].tolist() == greedy
    assert checked.checked > 15
    if where == "mixed, asked now and then":
        assert min(checked.lengths) < -1, (
            "a step without the model leaves its cache behind, for the next one to catch up"
        )
    assert max(g.tokens_per_step for g in output.branchwise) > 1.4
    assert drafter._lanes.model.cache.lanes == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_tokens_of_plain_sampling(target, kind):
    options = {"max_new_tokens": NEW, "do_sample": True, "seed": 4, "temperature": 0.9, "top_p": 0.95}
    plain = Speculator(target, drafter="none").complete(PROMPT, **options).tokens
    for drafter in (small(near(target), kind), mixed_with(small(near(target), kind), "yyn")):
        assert Speculator(target, drafter=drafter, budget=9).complete(PROMPT, **options).tokens == plain


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


class Fixed:
    """A free source for the mixed tree: one child, just likely enough to stand before the draws."""

    name = "fixed"
    feature_layers: tuple[int, ...] = ()
    trust = (0.99,)

    def start(self, context):
        return None

    def begin(self, states, contexts, budgets):
        pass

    def evidence(self, state, path):
        return [Evidence(0, {2: 0.65})] if len(path) < 2 else []

    def absorb(self, states, records):
        pass


@pytest.mark.parametrize("rule", ["match", "rejection", "traversal"])
@pytest.mark.parametrize("where", ["alone", "mixed"])
def test_sampled_trees_keep_the_targets_law(where, rule):
    """Every draft and every coin of two emitted tokens, through the real models and caches, against plain laws."""
    options = {"vocab_size": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model, other = tiny_llama(**options), tiny_llama(seed=3, **options)
    target = HuggingFaceTarget(model)
    prompt, stop = (1, 0, 2), StopRules(max_new_tokens=2)
    shapes = set()

    def play(coins):
        drafter = small(other, "sampled", depth=2, width=2)
        if where == "mixed":
            drafter = MixedDrafter([Fixed(), DrafterSource(drafter)], ask=AskRule())
        session = Session(target, drafter, FixedBudget(5))
        lane = session.add(Request(prompt, Sampler(do_sample=True), stop), RULES[rule].make())
        lane.coins = Scripted(coins)
        while session.active:
            session.step()
        proposals = lane.records[0].draft.proposals
        shapes.add(tuple(isinstance(proposal, Sampled) for proposal in proposals))
        return tuple(lane.generated)

    law: dict[tuple[int, ...], float] = {}
    for tokens, weight in outcomes(play):
        law[tokens] = law.get(tokens, 0.0) + float(weight)
    first = torch.softmax(logits_by_recompute(model, list(prompt))[-1], 0)
    distance = 0.0
    for a in range(3):
        second = torch.softmax(logits_by_recompute(model, [*prompt, a])[-1], 0)
        distance += sum(abs(law.get((a, b), 0.0) - float(first[a] * second[b])) for b in range(3))
    assert sum(law.values()) == pytest.approx(1.0)
    assert distance / 2 < 1e-12
    assert any(any(shape) for shape in shapes)
    if where == "mixed":
        assert any(not all(shape) for shape in shapes), "deterministic and sampled children in one tree"


class TableLanes:
    """A small model of 3 tokens as a table: logits per path, no cache."""

    def __init__(self, seed):
        self._coins = torch.Generator().manual_seed(seed)
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}
        self.model = None

    def row(self, path):
        if path not in self._rows:
            self._rows[path] = torch.randn(3, generator=self._coins, dtype=torch.float64) * 1.5
        return self._rows[path]

    def drop(self, lanes):
        pass

    def reach(self, lane, committed):
        return None

    def begin(self, lanes):
        return [torch.stack([self.row(path) for path in paths]) for _, _, paths in lanes]

    def grow(self, lanes):
        return [torch.stack([self.row(path) for path in paths]) for _, paths in lanes]


@pytest.mark.parametrize("rule", ["match", "rejection", "traversal"])
@pytest.mark.parametrize("where", ["alone", "mixed"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_one_step_of_a_deep_sampled_tree_has_the_targets_law(where, rule, width):
    """Every draft and every coin of one step, against the law of the next three tokens."""
    draft_table, law_table = TableLanes(1), TableLanes(2)
    drafter = small(tiny_llama(vocab_size=3), "sampled", depth=3, width=width)
    drafter._lanes = draft_table
    source = MixedDrafter([Fixed(), DrafterSource(drafter)], ask=Always()) if where == "mixed" else drafter
    state = MixedState([None, DrafterSourceState(SmallModelState(None))]) if where == "mixed" else SmallModelState(None)
    shapes = set()

    def law(path):
        return torch.softmax(law_table.row(path), 0)

    def play(coins):
        (draft,) = source.propose([state], [DraftContext([1], 3, coins=coins)], [6])
        tree = draft.tree
        paths = [tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(len(tree))]
        shapes.add((tree.parents, tuple(isinstance(proposal, Sampled) for proposal in draft.proposals)))
        verdict = RULES[rule].make().accept(draft, lambda node: law(paths[node]), coins)
        return (*paths[verdict.path[-1]], verdict.bonus)

    found: dict[tuple[int, ...], float] = {}
    for tokens, weight in outcomes(play):
        for rest in itertools.product(range(3), repeat=max(0, 3 - len(tokens))):
            whole = (*tokens, *rest)
            share = float(weight)
            for depth in range(len(tokens), len(whole)):
                share *= float(law(whole[:depth])[whole[depth]])
            found[whole[:3]] = found.get(whole[:3], 0.0) + share
    distance = sum(
        abs(found.get(path, 0.0) - float(law(())[path[0]] * law(path[:1])[path[1]] * law(path[:2])[path[2]]))
        for path in itertools.product(range(3), repeat=3)
    )
    assert distance / 2 < 1e-12
    assert max(len(parents) for parents, _ in shapes) == (4 if where == "alone" and width == 1 else 6)
    for parents, kinds in shapes:
        at_root = [kind for parent, kind in zip(parents[1:], kinds, strict=True) if parent == 0]
        assert at_root[0] is (where == "alone") and at_root[-1], "the fixed child, then the draws"


def test_the_vector_is_the_small_models_law_under_the_requests_settings(target):
    other = tiny_llama(seed=3)
    drafter = small(other, "sampled", depth=1, width=3)
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    output = Speculator(target, drafter=drafter, budget=4).complete(
        PROMPT, max_new_tokens=4, do_sample=True, **settings
    )
    draft = output.records[0].draft
    vector = draft.proposal(1).vector
    scores = logits_by_recompute(other, PROMPT)[-1] / 0.7
    kept = scores.topk(5)
    law = torch.softmax(kept.values, 0)
    before = torch.cumsum(law, 0) - law
    kept_ids = kept.indices[before < 0.9]
    assert set(vector.nonzero()[:, 0].tolist()) == set(kept_ids.tolist())
    expected = torch.softmax(scores[kept_ids], 0)
    torch.testing.assert_close(vector[kept_ids], expected, rtol=1e-9, atol=1e-12)
    assert vector.shape == (VOCAB,)


def test_auto_judges_sampled_trees_by_traversal_and_samples_what_it_says(target):
    speculator = Speculator(target, drafter=small(near(target), "sampled"), budget=9)
    output = speculator.complete(PROMPT, max_new_tokens=30, do_sample=True)
    drafted = [record for record in output.records if len(record.draft.tree) > 1]
    assert drafted and all(isinstance(p, Sampled) for record in drafted for p in record.draft.proposals)
    assert speculator.drafter.is_deterministic is False
    assert mixed_with(small(near(target), "sampled")).is_deterministic is False
    assert mixed_with(small(near(target), "dynamic")).is_deterministic is True


@pytest.mark.parametrize("where", ["alone", "mixed"])
def test_a_small_model_that_fails_costs_one_warning_and_not_the_text(target, greedy, where, monkeypatch):
    drafter = small(near(target), "dynamic")
    calls = []
    run = drafter._lanes.model._run

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 9:
            raise RuntimeError("out of memory")
        return run(*args, **kwargs)

    monkeypatch.setattr(drafter._lanes.model, "_run", failing)
    speculator = Speculator(target, drafter=drafter if where == "alone" else mixed_with(drafter), budget=9)
    with pytest.warns(BranchwiseWarning, match="out of memory.*plain decoding") as caught:
        output = speculator.generate(BATCH, attention_mask=MASK, max_new_tokens=NEW, do_sample=False)
    assert len(caught) == 1
    assert output[:, 9:].tolist() == greedy
    assert drafter._lanes.model.cache.lanes == ()


@pytest.mark.parametrize("family", [SUPPORTED[1], SUPPORTED[6], SUPPORTED[9]], ids=lambda family: family.name)
def test_long_gaps_are_caught_up_with_in_pieces(target, family, monkeypatch):
    """The model is asked in the first step and then not for 70 tokens; windows move on meanwhile."""
    monkeypatch.setattr("branchwise.draft.model_lanes.CHAIN_TOKENS", 8)
    drafter = small(build(family, seed=1), "dynamic")
    outer = mixed_with(drafter, "y" + "n" * 30 + "y")
    checked = CacheChecked(outer, drafter, lambda state, context: (state.sources[2].inner.lane, context.tokens))
    output = Speculator(target, drafter=checked, budget=5).complete(PROMPT, max_new_tokens=70, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(target, PROMPT, 70)
    assert min(checked.lengths) < -8


def test_ids_that_only_the_target_has_are_read_as_something(target):
    """The target writes ids that the small model has no embedding for: they cost a guess, not the drafter."""
    drafter = small(tiny_llama(seed=3, vocab_size=24), "dynamic")
    expected = greedy_by_recompute(target, PROMPT, NEW)
    assert max(expected) >= 24
    output = Speculator(target, drafter=drafter, budget=9).complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == expected
    assert len(output.records[-2].draft.tree) > 1, "it still drafts"


def test_a_small_model_of_another_vocabulary_is_refused_before_the_first_token(target):
    drafter = small(tiny_llama(seed=3, vocab_size=2000), "dynamic")
    with pytest.raises(ValueError, match="writes 2000 token ids and the target 37"):
        Speculator(target, drafter=drafter).complete(PROMPT, max_new_tokens=3, do_sample=False)


def test_a_prompt_beyond_the_small_models_positions_is_decoded_without_its_drafts(target):
    drafter = small(build(SUPPORTED[9], seed=1, n_positions=16), "dynamic")  # learned positions
    prompt = PROMPT * 3
    output = Speculator(target, drafter=mixed_with(drafter), budget=9).complete(
        prompt, max_new_tokens=NEW, do_sample=False
    )
    assert list(output.tokens) == greedy_by_recompute(target, prompt, NEW)
    # and one that reaches its end on the way
    drafter = small(build(SUPPORTED[9], seed=1, n_positions=16), "dynamic")
    output = Speculator(target, drafter=drafter, budget=9).complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(target, PROMPT, NEW)
    assert len(output.records[0].draft.tree) > 1 and len(output.records[-1].draft.tree) == 1
