"""The engines for CPUs on every family they know, in float32: trees, lanes, windows, features, and plain decoding."""

from __future__ import annotations

import random

import pytest
import torch

from branchwise import Speculator, UnsupportedModel
from branchwise.decode.session import Session
from branchwise.target.compiled import CompiledTarget
from branchwise.target.decoder_parts import EXPORTED_MODEL_TYPES
from branchwise.target.native import NativeTarget
from branchwise.target.native_engine import native_library
from branchwise.target.quantised_store import quantised_weights
from branchwise.tree import TokenTree
from branchwise.tune.budget import FixedBudget
from branchwise.tune.curve_key import curve_key
from branchwise.verify.greedy import Greedy
from cache_oracle import OneByOne
from loop_rig import WildTrees, committed_tokens, greedy_request
from oracles import greedy_by_recompute
from zoo import SUPPORTED, VOCAB, build

pytestmark = pytest.mark.core

PROMPTS = ([7, 3, 11, 3, 7, 3, 11, 19, 23], [5], [2, 30, 2, 30, 2], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3])
NEW = (40, 20, 9, 20)
#     0
#    / \
#   1   3        a topological order that is not breadth-first, with a repeated token
#   |   |\
#   2   4 6
#       |
#       5
TREE = TokenTree((23, 5, 6, 9, 5, 0, 8), (-1, 0, 1, 0, 3, 4, 3))
FAMILIES = [family for family in SUPPORTED if family.model_type in EXPORTED_MODEL_TYPES]
#: "gathered": OpenVINO with the attention that it otherwise has for windows only
ENGINES = ("native", "openvino", "gathered")
CASES = [(family, engine) for family in FAMILIES for engine in ENGINES[:2]] + [(FAMILIES[0], "gathered")]
_COMPILED: dict[tuple, CompiledTarget] = {}


def make(model, engine: str, **options) -> CompiledTarget:
    if engine == "native":
        if native_library().library is None:
            # the native engine is compiled on the machine: without a compiler there is none
            pytest.skip(native_library().reason)
        return NativeTarget(model, threads=1, **options)
    # OpenVINO is an extra: the tests run without it, too
    pytest.importorskip("openvino", reason="this engine is an extra of its own: branchwise[openvino]")
    from branchwise.target.openvino import OpenVinoTarget

    return OpenVinoTarget(model, paged=engine == "openvino", threads=1, **options)


def in_floats(engine: str, weights: str) -> dict:
    """Options for products in float32: in bfloat16 a near-tie may fall the other way."""
    if engine == "native":
        return {"products": "f32"}
    # OpenVINO is an extra: the tests run without it, too
    pytest.importorskip("openvino", reason="this engine is an extra of its own: branchwise[openvino]")
    from branchwise.target.openvino_engine import Numbers

    # activations in 8 bits are the same for plain decoding and trees
    return {} if weights == "int8" else {"numbers": Numbers("f32", torch.float32)}


def target_of(family, engine: str = "native", weights: str = "f32", **options) -> CompiledTarget:
    """Compiling takes longer than any test: one target per case serves them all."""
    key = (family.name, engine, weights)
    if key not in _COMPILED:
        model = build(family).float()
        _COMPILED[key] = make(model, engine, weights=weights, **in_floats(engine, weights), **options)
        lane = _COMPILED[key].open()
        _COMPILED[key].feed(lane, [1], feature_layers=(0, 1, 2))  # compiled with all features at once
        _COMPILED[key].free(lane)
    return _COMPILED[key]


by_case = pytest.mark.parametrize(("family", "engine"), CASES, ids=lambda value: getattr(value, "name", str(value)))
by_engine = pytest.mark.parametrize("engine", ENGINES)
by_compiled = pytest.mark.parametrize("engine", ENGINES[:2])


@torch.no_grad()
def alone(model, tokens: list[int]):
    return model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)


def test_every_family_that_is_said_to_compile_is_tested():
    assert {family.model_type for family in FAMILIES} == EXPORTED_MODEL_TYPES


@by_case
def test_every_node_has_the_logits_and_features_of_its_path_run_alone(family, engine):
    target = target_of(family, engine)
    trees = {}
    for prompt in PROMPTS:  # lanes of different lengths with trees of different sizes, in one forward
        lane = target.open()
        target.prefill(lane, prompt)
        cut = 1 + len(prompt) % len(TREE)
        trees[lane] = TokenTree((prompt[-1], *TREE.tokens[1:cut]), TREE.parents[:cut])
    outputs = target.forward(trees, feature_layers=(0, 1, 2))
    for (lane, tree), prompt in zip(trees.items(), PROMPTS, strict=True):
        for node in range(len(tree)):
            path = [tree.tokens[i] for i in tree.path(node)]
            own = alone(target.model, [*prompt[:-1], *path])
            torch.testing.assert_close(outputs[lane].logits[node], own.logits[0, -1], rtol=1e-4, atol=1e-3)
            for layer in (0, 1, 2):
                expected = own.hidden_states[layer][0, -1]
                torch.testing.assert_close(outputs[lane].features[layer][node], expected, rtol=1e-4, atol=1e-3)
    target.rollback()
    for lane in trees:
        target.free(lane)


@by_engine
def test_trees_larger_than_a_block_of_rows(engine):
    """70 nodes behind 45 committed tokens: nodes and rows both cross blocks of 32; a second lane brings a lone root."""
    target = target_of(FAMILIES[0], engine)
    draw = random.Random(3)
    prompt = [draw.randrange(VOCAB) for _ in range(46)]
    parents = [-1, *(draw.randrange(max(0, node - 12), node) for node in range(1, 70))]
    tree = TokenTree([prompt[-1], *(draw.randrange(VOCAB) for _ in range(69))], parents)
    lane, other = target.open(), target.open()
    target.prefill(lane, prompt)
    target.prefill(other, PROMPTS[0])
    outputs = target.forward({other: TokenTree.from_chain(PROMPTS[0][-1]), lane: tree})
    for node in (*tree.leaves, 1, 31, 32, 33):
        own = alone(target.model, [*prompt[:-1], *(tree.tokens[i] for i in tree.path(node))]).logits[0, -1]
        torch.testing.assert_close(outputs[lane].logits[node], own, rtol=1e-4, atol=1e-3)
    own = alone(target.model, PROMPTS[0]).logits[0, -1]
    torch.testing.assert_close(outputs[other].logits[0], own, rtol=1e-4, atol=1e-3)
    path = tree.path(tree.leaves[-1])
    target.commit({lane: path, other: [0]})
    root = TokenTree.from_chain(5)
    own = alone(target.model, [*prompt[:-1], *(tree.tokens[i] for i in path), 5]).logits[0, -1]
    torch.testing.assert_close(target.forward({lane: root})[lane].logits[0], own, rtol=1e-4, atol=1e-3)
    target.rollback()
    for each in (lane, other):
        target.free(each)


@by_case
def test_siblings_do_not_see_each_other(family, engine):
    target = target_of(family, engine)
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    logits = target.forward({lane: TREE})[lane].logits
    target.rollback()
    other = list(TREE.tokens)
    for stranger in (1, 2, 6):  # no ancestors of nodes 3, 4 and 5
        other[stranger] = (other[stranger] + 11) % VOCAB
    changed = target.forward({lane: TokenTree(other, TREE.parents)})[lane].logits
    target.rollback()
    target.free(lane)
    for node in (0, 3, 4, 5):
        assert torch.equal(logits[node], changed[node])
    assert not torch.equal(logits[1], changed[1])


@by_case
def test_greedy_output_is_plain_decodings_and_the_cache_is_that_of_the_committed_tokens(family, engine):
    """Long enough to leave the window of 6 far behind; one lane joins late, and all end at different steps."""
    target = target_of(family, engine)
    futures = {tuple(p): greedy_by_recompute(target.model, p, new) for p, new in zip(PROMPTS, NEW, strict=True)}
    session = Session(target, WildTrees(futures, seed=3), FixedBudget(12))
    lanes = [session.add(greedy_request(p, new), Greedy()) for p, new in zip(PROMPTS[:-1], NEW, strict=False)]
    rebuilt = {lane: OneByOne(target.model) for lane in lanes}
    while session.active:
        for lane in session.active:
            committed = committed_tokens(lane)
            rebuilt[lane].feed_up_to(committed)
            assert_rows(target, lane.number, rebuilt[lane], len(committed))
        target.cache.check_integrity()
        session.step()
        if len(lanes) < len(PROMPTS) and len(lanes[0].generated) > 12:
            lanes.append(session.add(greedy_request(PROMPTS[-1], NEW[-1]), Greedy()))
            rebuilt[lanes[-1]] = OneByOne(target.model)
    for lane, prompt in zip(lanes, PROMPTS, strict=True):
        assert lane.generated == futures[tuple(prompt)]
    assert max(len(record.verdict.path) for lane in lanes for record in lane.records) > 4
    assert not target.cache.lanes


def assert_rows(target: CompiledTarget, lane: int, expected: OneByOne, length: int) -> None:
    assert target.length(lane) == length
    for layer in range(len(target.windows)):
        if length:
            for rows, known in zip(target.cache.rows(lane, layer), (expected.keys, expected.values), strict=True):
                torch.testing.assert_close(rows, torch.stack(known[layer], dim=1), rtol=1e-3, atol=1e-3)


@by_compiled
@pytest.mark.parametrize("weights", ["f32", "int8", "int4"])
def test_sampled_output_is_that_of_plain_decoding_with_the_same_weights(engine, weights, tmp_path):
    target = target_of(FAMILIES[0], engine, weights, **({} if weights == "f32" else {"cache_dir": tmp_path}))
    options = {"max_new_tokens": 30, "do_sample": True, "temperature": 0.8, "seed": 5}
    plain = Speculator(target, drafter="none").complete(PROMPTS[0], **options)
    drafted = Speculator(target, drafter="mixed", budget=12).complete(PROMPTS[0], **options)
    assert drafted.tokens == plain.tokens


@by_compiled
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_weights_are_multiplied_as_what_they_stand_for(engine, weights, tmp_path):
    model = build(FAMILIES[0], hidden_size=64, intermediate_size=96, num_attention_heads=4).float()
    options = in_floats(engine, "int4")
    target = make(model, engine, weights=weights, cache_dir=tmp_path, **options)
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    logits = target.forward({lane: TREE})[lane].logits
    names = dict(target.decoder.linears())
    with torch.no_grad():
        for name, q in quantised_weights(target.decoder, weights, tmp_path).items():
            names[name].weight.copy_(q.dequantised())
    own = alone(model, [*PROMPTS[0][:-1], *(TREE.tokens[node] for node in TREE.path(5))]).logits[0, -1]
    torch.testing.assert_close(logits[5], own, rtol=1e-4, atol=2e-3)


@by_compiled
def test_bfloat16_stays_near_the_model_and_keeps_its_own_output(engine):
    model = build(FAMILIES[0]).bfloat16()
    target = make(model, engine)
    assert target.weights == "bf16"
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    logits = target.forward({lane: TREE})[lane].logits
    target.rollback()
    target.free(lane)
    own = alone(model, [*PROMPTS[0][:-1], *(TREE.tokens[node] for node in TREE.path(5))]).logits[0, -1].float()
    assert float((logits[5] - own).abs().max()) < 0.05 * float(own.max() - own.min())


@by_compiled
def test_a_prompt_read_in_parts_gives_the_same(engine, monkeypatch):
    target = target_of(FAMILIES[0], engine)
    prompt = [(7 * i) % VOCAB for i in range(80)]  # over more than one block
    whole, parts = target.open(), target.open()
    first = target.prefill(whole, prompt, (1,))
    monkeypatch.setattr(target, "prefill_chunk", 13)
    second = target.prefill(parts, prompt, (1,))
    torch.testing.assert_close(first[1], second[1], rtol=1e-4, atol=1e-4)
    chain = TokenTree.from_chain(prompt[-1], [3, 4])
    outputs = target.forward({whole: chain, parts: chain})
    torch.testing.assert_close(outputs[whole].logits, outputs[parts].logits, rtol=1e-4, atol=1e-3)
    target.rollback()
    snapshot = target.snapshot(whole)
    target.clear(parts)
    target.restore(parts, snapshot, prompt[:70])
    again = target.forward({parts: TokenTree.from_chain(prompt[70])})[parts].logits[0]
    own = alone(target.model, prompt[:71]).logits[0, -1]
    torch.testing.assert_close(again, own, rtol=1e-4, atol=1e-3)
    target.rollback()
    for lane in (whole, parts):
        target.free(lane)


@by_compiled
def test_features_are_there_when_asked_for(engine):
    model = build(FAMILIES[0]).float()
    target = make(model, engine, weights="f32")
    lane = target.open()
    assert target.prefill(lane, PROMPTS[0]) == {}
    features = target.forward({lane: TREE}, feature_layers=(2,))[lane].features
    own = alone(model, [*PROMPTS[0][:-1], 23]).hidden_states[2][0, -1]
    torch.testing.assert_close(features[2][0], own, rtol=1e-4, atol=1e-3)
    target.rollback()
    with pytest.raises(ValueError, match=r"feature layers \[3\] do not exist: there are 0 to 2"):
        target.forward({lane: TREE}, feature_layers=(3,))
    assert target.length(lane) == len(PROMPTS[0]) - 1


@by_compiled
def test_the_model_is_left_as_found(engine):
    target_of(FAMILIES[0], engine)  # skips where there is none
    model = build(FAMILIES[0]).float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attention = model.config._attn_implementation
    Speculator(model, engine=engine, weights="f32").complete(PROMPTS[0], max_new_tokens=4, do_sample=False)
    assert model.config._attn_implementation == attention
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


@by_compiled
def test_an_interrupted_forward_leaves_no_rows(engine, monkeypatch):
    target = target_of(FAMILIES[0], engine)
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    with monkeypatch.context() as patch:
        runner = target._native if engine == "native" else target._compiled_for(())
        patch.setattr(runner, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            target.forward({lane: TREE})
    target.cache.check_integrity()
    target.forward({lane: TREE})
    target.commit({lane: [0, 3]})
    assert target.length(lane) == len(PROMPTS[0]) + 1
    target.free(lane)


@by_compiled
def test_trees_that_leave_the_context_are_refused(engine):
    target = target_of(FAMILIES[0], engine)
    lane = target.open()
    target.prefill(lane, [1] * target.context_limit)
    assert target.depth_limit(lane) == 0
    with pytest.raises(ValueError, match="3 deep but only 0 positions are left"):
        target.forward({lane: TREE})
    target.free(lane)


@by_compiled
def test_models_in_other_modes_and_places_are_refused(engine):
    model = build(FAMILIES[0]).float()
    with pytest.raises(UnsupportedModel, match=r"it is in float64.*model\.float"):
        make(build(FAMILIES[0]), engine)
    with pytest.raises(UnsupportedModel, match=r"on meta, and compiled engines run on the CPU"):
        make(build(FAMILIES[0]).to("meta"), engine)
    target = make(model, engine, weights="f32")
    model.train()
    with pytest.raises(UnsupportedModel, match="training mode"):
        target.open()
    with pytest.raises(ValueError, match="prefill_chunk must be >= 1"):
        make(model.eval(), engine, prefill_chunk=0)


@pytest.mark.parametrize("weights", ["f32", "int8"])
def test_plain_decoding_and_chains_of_drafts_agree(weights, tmp_path):
    options = {"cache_dir": tmp_path} if weights == "int8" else {}
    target = target_of(FAMILIES[0], "openvino", weights, **options)
    chain = [PROMPTS[0][-1], 4, 9, 30, 2]
    lane = target.open()
    target.prefill(lane, PROMPTS[0])
    wide = target.forward({lane: TokenTree.from_chain(chain[0], chain[1:])})[lane].logits
    target.rollback()
    for step, token in enumerate(chain):
        output = target.forward({lane: TokenTree.from_chain(token)}, feature_layers=(1,))[lane]
        assert output.logits.shape == (1, VOCAB)
        assert output.features[1].shape == (1, 32)
        # to the last bit, but for int8 on processors without AVX512, where openvino's sums take another order
        rounding = 1e-5 if weights == "int8" else 0
        torch.testing.assert_close(output.logits[0], wide[step], rtol=rounding, atol=rounding)
        target.commit({lane: (0,)})
    target.free(lane)


@by_compiled
def test_the_cost_curve_knows_engine_and_numbers(engine):
    key = curve_key(target_of(FAMILIES[0], engine))
    assert key["engine"] == engine
    assert (key["weights_format"], key["products"], key["engine_threads"]) == ("f32", "f32", 1)
    assert key["weights"], "the model's own weights are still part of the key"
