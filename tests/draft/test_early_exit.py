"""The target's own first layers as drafter: exact in both modes, and everything is left as it was found."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from branchwise import BranchwiseWarning, Speculator
from branchwise.decode.session import Session
from branchwise.draft import DraftContext, DrafterSource, EarlyExitDrafter, MixedDrafter, NgramSource, make_drafter
from branchwise.draft.top_tokens import likeliest_tokens
from branchwise.target import HuggingFaceTarget
from branchwise.tune.budget import FixedBudget
from branchwise.verify.greedy import Greedy
from cache_oracle import EAGER, OneByOne, assert_equal_caches
from loop_rig import ScriptedTarget, committed_tokens, finish, greedy_request
from oracles import greedy_by_recompute, logits_by_recompute
from small_model_rig import Always, mixed_with
from zoo import LENGTH_DEPENDENT, SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
PROMPTS = (PROMPT, [5], [2, 30, 2, 30, 2])
NEW = 16
#: an exit, and sets of skipped layers with a gap
WAYS = ({"exit_layer": 1}, {"exit_layer": 3}, {"skip_layers": (3, 1)}, {"skip_layers": (2,)})
ways = pytest.mark.parametrize("way", WAYS, ids=str)
modes = pytest.mark.parametrize("mode", ["reuse", "recompute"])


@pytest.fixture(scope="module")
def model():
    return tiny_llama(num_hidden_layers=4)


def inside(model, *, budget=9, mixed=False, **options):
    """A speculator whose drafter works inside its target."""
    target = HuggingFaceTarget(model)
    drafter = EarlyExitDrafter(target, **options)
    if mixed:
        drafter = mixed_with(drafter, "yyn")
    return Speculator(target, drafter=drafter, budget=budget)


@ways
@modes
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
def test_output_is_plain_decoding(model, way, mode, mixed):
    expected = greedy_by_recompute(model, PROMPT, NEW)
    speculator = inside(model, mode=mode, mixed=mixed, **way)
    output = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == expected
    plain = Speculator(model, drafter="none").complete(PROMPT, max_new_tokens=NEW, do_sample=True, seed=4)
    sampled = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=True, seed=4)
    assert sampled.tokens == plain.tokens


@modes
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_padded_on_either_side(model, mode, mixed, side):
    padded = [[*[0] * (9 - len(p)), *p] if side == "left" else [*p, *[0] * (9 - len(p))] for p in PROMPTS]
    real = [
        [*[0] * (9 - len(p)), *[1] * len(p)] if side == "left" else [*[1] * len(p), *[0] * (9 - len(p))]
        for p in PROMPTS
    ]
    ids, mask = torch.tensor(padded), torch.tensor(real)
    speculator = inside(model, mode=mode, mixed=mixed, exit_layer=2)
    output = speculator.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    for row, prompt in zip(output, PROMPTS, strict=True):
        assert row[9:].tolist() == greedy_by_recompute(model, prompt, NEW)
    options = {"max_new_tokens": NEW, "do_sample": True, "seed": 7, "attention_mask": mask}
    expected = Speculator(model, drafter="none").generate(ids, **options)
    assert torch.equal(speculator.generate(ids, **options), expected)
    assert speculator.target.cache.lanes == ()


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mistral"])
def test_after_every_step_the_cache_is_that_of_the_committed_tokens(name, mixed):
    options = {"num_hidden_layers": 3, "sliding_window": 4}
    if name == "gemma3_text":
        options["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    family = next(family for family in SUPPORTED if family.model_type == name)
    model = build(family, **(options if name != "llama" else {"num_hidden_layers": 3}))
    speculator = inside(model, exit_layer=2, mixed=mixed, width=2)
    session = Session(speculator.target, speculator.drafter, FixedBudget(9))
    lanes = [session.add(greedy_request(prompt, NEW), Greedy()) for prompt in PROMPTS[:2]]
    rebuilt = {lane: OneByOne(model) for lane in lanes}
    while session.active:
        for lane in session.active:
            committed = committed_tokens(lane)
            rebuilt[lane].feed_up_to(committed)
            tolerance = 1e-5 if name in EAGER else 1e-10
            assert_equal_caches(session.target.cache, lane.number, rebuilt[lane], len(committed), tolerance)
        session.target.cache.check_integrity()
        session.step()
        if len(lanes) < 3 and len(lanes[0].generated) > 5:
            lanes.append(session.add(greedy_request(PROMPTS[2], NEW), Greedy()))
            rebuilt[lanes[2]] = OneByOne(model)
    assert max(len(record.verdict.path) for lane in lanes for record in lane.records) > 2, "the test lost its point"


def test_two_hundred_steps_of_an_always_wrong_adapter_leak_nothing(model):
    """The adapter turns the hidden states round, so what the layers think least likely is drafted."""
    target = HuggingFaceTarget(model)
    drafter = EarlyExitDrafter(target, exit_layer=3, adapter=torch.neg)
    session = Session(target, drafter, FixedBudget(9))
    lane = session.add(greedy_request(PROMPT, 240), Greedy())
    drafted = 0
    for _ in range(200):
        session.step()
        drafted += len(lane.records[-1].draft.tree) - 1
        assert all(layer.kept == [lane.position - 1] and not layer.in_flight for layer in target.cache.layers)
    assert drafted == 200 * 8
    assert sum(len(record.verdict.path) - 1 for record in lane.records) < 20
    assert max(layer.capacity for layer in target.cache.layers) < 2 * lane.position
    session.close()
    assert target.cache.nbytes == 0
    assert lane.generated == greedy_by_recompute(model, PROMPT, len(lane.generated))


# the drafts


def shallow(model, layers):
    """The model cut off by hand."""
    cut = copy.deepcopy(model)
    cut.model.layers = cut.model.layers[:layers]
    cut.config.num_hidden_layers = layers
    return cut


def dynamic_tree(logits, tokens, budget, depth, width):
    """Path by path, with no tree and no cache: a dict of paths and their log-probabilities."""
    frontier, seen = [((), 0.0)], {}
    for _ in range(depth):
        level = []
        for path, above in frontier:
            values, ids = torch.log_softmax(logits([*tokens, *path])[-1], 0).topk(width)
            level += [((*path, int(t)), above + float(v)) for t, v in zip(ids, values, strict=True)]
        seen.update(level)
        frontier = sorted(level, key=lambda item: -item[1])[:width]
    return dict(sorted(seen.items(), key=lambda item: -item[1])[: budget - 1])


@modes
@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "adapter"])
def test_trees_are_those_of_the_model_cut_off_at_the_exit(model, mode, adapted):
    cut, weights = shallow(model, 2), torch.randn(32, 32, dtype=torch.float64)
    if adapted:
        cut.model.norm.register_forward_pre_hook(lambda module, args: (args[0] @ weights,))
    adapter = (lambda hidden: hidden @ weights) if adapted else None
    speculator = inside(model, mode=mode, exit_layer=2, adapter=adapter)
    output = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    tokens = list(PROMPT)
    for record in output.records:
        left = NEW - (len(tokens) - len(PROMPT))
        expected = dynamic_tree(lambda t: logits_by_recompute(cut, t), tokens, 9, min(3, left - 1), 3)
        tree = record.draft.tree
        paths = {tuple(tree.tokens[n] for n in tree.path(node)[1:]): node for node in range(1, len(tree))}
        assert set(paths) == set(expected)
        for path, node in paths.items():
            assert record.draft.scores[node - 1] == pytest.approx(math.exp(expected[path]), rel=1e-9)
        tokens += record.tokens


@ways
def test_both_modes_draft_the_same_trees(model, way):
    runs = [
        inside(model, mode=mode, **way).complete(PROMPT, max_new_tokens=NEW, do_sample=False).records
        for mode in ("reuse", "recompute")
    ]
    assert [record.draft.tree for record in runs[0]] == [record.draft.tree for record in runs[1]]


def rows_per_layer(model, act):
    """Rows every layer is called with while ``act`` runs."""
    rows = [0] * len(model.model.layers)
    handles = []
    for index, layer in enumerate(model.model.layers):

        def count(module, args, index=index):
            rows[index] += args[0].shape[0] * args[0].shape[1]

        handles.append(layer.register_forward_pre_hook(count))
    try:
        act()
    finally:
        for handle in handles:
            handle.remove()
    return rows


def test_no_node_runs_twice_through_a_shared_layer(model):
    """Width 2, depth 3: 1 + 2 + 2 nodes draft, 2 + 4 + 4 candidates; 7 nodes are verified."""

    def step(**options):
        speculator = inside(model, depth=3, width=2, budget=7, **options)
        session = Session(speculator.target, speculator.drafter, FixedBudget(7))
        lane = session.add(greedy_request(PROMPT, 20), Greedy())
        rows = rows_per_layer(model, session.step)
        session.close()
        assert len(lane.records[0].draft.tree) == 7
        return rows

    rows = step(exit_layer=2)
    # the nodes of the tree that were never drafted from are left to verification; the root is not among them
    assert rows[2:] == [7, 7]
    assert 5 <= rows[0] == rows[1] < 5 + 7
    assert step(exit_layer=2, mode="recompute") == [5 + 7, 5 + 7, 7, 7]
    assert step(skip_layers=(2,), mode="recompute") == [5 + 7, 5 + 7, 7, 5 + 7]
    skipping = step(skip_layers=(2,))
    assert skipping[2:] == [7, 5 + 7]
    assert skipping[0] == skipping[1] < 5 + 7


def test_a_budget_of_one_is_one_plain_forward(model):
    speculator = inside(model, exit_layer=2, budget=1)
    session = Session(speculator.target, speculator.drafter, FixedBudget(1))
    session.add(greedy_request(PROMPT, 20), Greedy())
    assert rows_per_layer(model, session.step) == [1, 1, 1, 1]
    session.close()


# what happens between drafting and verification


def test_a_token_that_spoils_the_tree_costs_drafts_only(model):
    broken = copy.deepcopy(model)
    expected = greedy_by_recompute(broken, PROMPT, NEW)
    # not one of the tokens that the drafter is checked with when it is made
    unused = next(token for token in range(6, VOCAB) if token not in {*PROMPT, *expected})
    with torch.no_grad():
        broken.model.embed_tokens.weight[unused] = torch.nan
    # so that the broken token is drafted at every step
    weight = broken.lm_head.weight
    adapter = lambda hidden: hidden * 0 + 100 * weight[unused] / weight[unused].norm()  # noqa: E731
    output = inside(broken, exit_layer=2, adapter=adapter).complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == expected
    assert output.steps == NEW


@pytest.mark.parametrize("family", LENGTH_DEPENDENT, ids=lambda family: family.name)
@pytest.mark.parametrize("length", [9, 23, 24])
def test_rotary_frequencies_that_depend_on_the_length(family, length):
    model = build(family)
    prompt = [1 + (5 * i + 3) % (VOCAB - 1) for i in range(length)]
    plain = Speculator(model, drafter="none").complete(prompt, max_new_tokens=20, do_sample=False)
    output = inside(model, exit_layer=1).complete(prompt, max_new_tokens=20, do_sample=False)
    assert output.tokens == plain.tokens


def test_the_last_tokens_of_the_context(model):
    prompt = [(7 * i + 1) % VOCAB for i in range(250)]
    output = inside(model, exit_layer=2).complete(prompt, max_new_tokens=6, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, prompt, 6)


# the model and the target afterwards


def state_of(model):
    modules = dict(model.named_modules())
    tensors = {name: (tensor, tensor.clone()) for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    hooks = {name: (list(m._forward_hooks), list(m._forward_pre_hooks)) for name, m in modules.items()}
    modes = {name: module.training for name, module in modules.items()}
    config = copy.deepcopy(model.config.to_dict()), model.config._attn_implementation
    return modules, tensors, hooks, modes, config


def assert_as_found(model, before):
    modules, tensors, hooks, modes, config = before
    now, _, *others = state_of(model)
    assert list(now) == list(modules)
    assert all(now[name] is module for name, module in modules.items())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert tensor is tensors[name][0]
        assert torch.equal(tensor, tensors[name][1])
    assert others == [hooks, modes, config]


@modes
def test_the_model_is_left_as_found(mode):
    model = tiny_llama(num_hidden_layers=3)
    model.model.layers[1].mlp.train()  # somebody's own mixture of modes
    before = state_of(model)
    inside(model, exit_layer=1, mode=mode).complete(PROMPT, max_new_tokens=8, do_sample=False)
    assert_as_found(model, before)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("call", [2, 3, 4, 5, 7])
@modes
def test_ctrl_c_in_any_forward_leaves_the_model_as_found_and_nothing_in_flight(mode, layer, call):
    model = tiny_llama(num_hidden_layers=3)
    speculator = inside(model, exit_layer=2, mode=mode)
    before = state_of(model)
    calls = 0

    def interrupt(*args):
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt

    handle = model.model.layers[layer].mlp.register_forward_pre_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    finally:
        handle.remove()
    assert_as_found(model, before)
    assert speculator.target.cache.lanes == ()
    assert speculator.target.head_start is None
    output = speculator.complete(PROMPT, max_new_tokens=6, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 6)


@modes
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_an_adapter_that_raises_costs_speed_and_one_warning(mode, after):
    model = tiny_llama(num_hidden_layers=3)
    calls, made = 0, math.inf

    def adapter(hidden):
        nonlocal calls
        calls += 1
        if calls == made + after:
            raise OSError("disk full")
        return hidden

    speculator = inside(model, exit_layer=2, mode=mode, adapter=adapter)
    made = calls
    before = state_of(model)
    with pytest.warns(BranchwiseWarning, match=r"'early_exit' failed \(OSError: disk full\)"):
        output = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, NEW)
    assert_as_found(model, before)
    speculator.target.cache.check_integrity()


@modes
@pytest.mark.parametrize("after", [1, 2])
def test_a_draft_that_fails_between_two_forwards_leaves_nothing_in_flight(model, monkeypatch, mode, after):
    calls = 0

    def fails(logits, k):
        nonlocal calls
        calls += 1
        if calls == after:
            raise OSError("disk full")
        return likeliest_tokens(logits, k)

    monkeypatch.setattr("branchwise.draft.model_candidates.likeliest_tokens", fails)
    speculator = inside(model, exit_layer=2, mode=mode)
    session = Session(speculator.target, speculator.drafter, FixedBudget(9))
    lane = session.add(greedy_request(PROMPT, NEW), Greedy())
    contexts, states = [lane.context], [lane.draft_state]
    with pytest.raises(OSError, match="disk full"):
        speculator.drafter.propose(states, contexts, [9])
    speculator.target.free(lane.number)  # refused while rows are in flight


def test_a_source_that_raises_after_the_layers_have_drafted(model):
    class Fails(NgramSource):
        costs_forwards = True  # so that it comes after the layers

        def begin(self, states, contexts, budgets):
            raise OSError("disk full")

    target = HuggingFaceTarget(model)
    drafter = MixedDrafter([DrafterSource(EarlyExitDrafter(target, exit_layer=2)), Fails()])
    with pytest.warns(BranchwiseWarning, match="disk full"):
        output = Speculator(target, drafter=drafter, budget=9).complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, NEW)


def test_features_for_another_drafter_come_along(model):
    class Listens(NgramSource):
        feature_layers = (0, 1, 3, 4)

        def begin(self, states, contexts, budgets):
            self.heard = [dict(context.features) for context in contexts]
            super().begin(states, contexts, budgets)

    target = HuggingFaceTarget(model)
    listens = Listens()
    drafter = MixedDrafter([DrafterSource(EarlyExitDrafter(target, exit_layer=2)), listens], ask=Always())
    session = Session(target, drafter, FixedBudget(9))
    lanes = [session.add(greedy_request(prompt, NEW), Greedy()) for prompt in PROMPTS[:2]]
    done = [0, 0]
    while session.active:
        session.step()
        if len(session.active) < 2:
            break
        for i, lane in enumerate(lanes):
            found, tokens = listens.heard[i], committed_tokens(lane)
            if done[i]:
                before = done[i] - len(found[0])
                states = model(torch.tensor([tokens[: done[i]]]), output_hidden_states=True).hidden_states
                for layer in listens.feature_layers:
                    torch.testing.assert_close(found[layer], states[layer][0, before:], rtol=0, atol=1e-12)
            done[i] = len(tokens)
    finish(session)


# options and refusals


def test_by_name(model):
    target = HuggingFaceTarget(model)
    drafter = make_drafter("early_exit", target=target, skip_layers=(2, 3), mode="recompute", depth=2, width=2)
    assert (drafter.name, drafter.mode, drafter.depth, drafter.width) == ("early_exit", "recompute", 2, 2)
    for options in ({}, {"exit_layer": 3}):
        named = Speculator(model, drafter="early_exit", drafter_options=options, budget=9)
        output = named.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
        assert list(output.tokens) == greedy_by_recompute(model, PROMPT, NEW)
    with pytest.raises(ValueError, match="no such option"):
        make_drafter("early_exit", target=target, exit=3)
    with pytest.raises(ValueError, match="'early_exit' works inside a target"):
        make_drafter("early_exit")
    with pytest.raises(ValueError, match="not a ScriptedTarget"):
        Speculator(ScriptedTarget([1, 2], VOCAB), drafter="early_exit")


@pytest.mark.parametrize(
    "options, says",
    [
        ({"depth": 0}, "depth >= 1, got 0"),
        ({"width": 0}, "width >= 1, got 0"),
        ({"mode": "both"}, "reuse, recompute, got 'both'"),
        ({"exit_layer": 0}, "from 1 to 3 for a model of 4 layers, got 0"),
        ({"exit_layer": 4}, "from 1 to 3 for a model of 4 layers, got 4"),
        ({"exit_layer": 1, "skip_layers": (2,)}, "skip_layers and exit_layer exclude each other"),
        ({"skip_layers": (2,), "adapter": torch.neg}, "skip_layers and adapter exclude each other"),
        ({"skip_layers": ()}, "at least one layer"),
        ({"skip_layers": (0, 2)}, "layer 0 always drafts"),
        ({"adapter": lambda hidden: hidden[..., :3]}, r"keep shape and dtype.*\[1, 1, 3\] torch.float64"),
        ({"adapter": lambda hidden: hidden.float()}, "torch.float32 of"),
    ],
)
def test_bad_options(model, options, says):
    target = HuggingFaceTarget(model)
    with pytest.raises(ValueError, match=says):
        EarlyExitDrafter(target, **options)
    assert target.cache.lanes == ()


def test_another_target_is_refused_before_the_first_token(model):
    drafter = EarlyExitDrafter(HuggingFaceTarget(model), exit_layer=2)
    speculator = Speculator(model, drafter=drafter, budget=9)
    with pytest.raises(ValueError, match="works inside another target"):
        speculator.complete(PROMPT, max_new_tokens=4, do_sample=False)
    assert speculator.target.cache.lanes == ()
    with pytest.raises(ValueError, match="works inside another target"):
        drafter.start(DraftContext(list(PROMPT), VOCAB))


@pytest.mark.model
def test_the_default_model():
    from branchwise.hub import load

    model, tokenizer = load("default", dtype=torch.float32)
    prompt = tokenizer("The three states of matter are", return_tensors="pt").input_ids[0].tolist()
    expected = Speculator(model, drafter="none").complete(prompt, max_new_tokens=24, do_sample=False)
    output = inside(model, exit_layer=20).complete(prompt, max_new_tokens=24, do_sample=False)
    assert output.tokens == expected.tokens
