"""A small model that drafts on a compiled engine: the trees of the same model on transformers, and a cache in step."""

from __future__ import annotations

import json
import random

import pytest
import torch
from typer.testing import CliRunner

from bpe_tokenizers import byte_level_bpe
from branchwise import BranchwiseWarning, Speculator
from branchwise.cli import app
from branchwise.draft import DraftContext, SmallModelDrafter, TextBridge, make_drafter
from branchwise.draft.protocol import StepRecord
from branchwise.target import HuggingFaceTarget
from branchwise.target.native import NativeTarget
from branchwise.target.native_engine import native_library
from branchwise.verify.coins import SeededCoins
from branchwise.verify.proposal import Sampled
from branchwise.verify.rule import Verdict
from branchwise.verify.sampler import Sampler
from oracles import greedy_by_recompute
from small_model_rig import KINDS, CacheChecked, mixed_with, small
from tiny_folder import save_tiny_model
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = [
    pytest.mark.core,
    # the native engine is compiled on the machine: without a compiler there is none
    pytest.mark.skipif(native_library().library is None, reason=native_library().reason or "there is a compiler"),
]

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
BATCH = torch.tensor([PROMPT, [0, 0, *PROMPT[2:]], [0] * 6 + PROMPT[6:]])
MASK = (torch.arange(9) >= torch.tensor([[0], [2], [6]])).long()
NEW = 20
ENGINES = ("native", "openvino")


def near(model, step=0.03):
    """A small model that often agrees with another: its weights, shaken."""
    other = tiny_llama()
    other.load_state_dict(model.state_dict())
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter) * step)
    return other.float()


def on(engine: str, model):
    if engine == "native":
        return NativeTarget(model, weights="f32", threads=1)
    # OpenVINO is an extra: the tests run without it, too
    pytest.importorskip("openvino", reason="this engine is an extra of its own: branchwise[openvino]")
    from branchwise.target.openvino import OpenVinoTarget

    return OpenVinoTarget(model, weights="f32", threads=1)


@pytest.fixture(scope="module")
def model():
    return tiny_llama().float()


@pytest.fixture(scope="module")
def drafting(model):
    """The same small model on every engine; compiling takes longer than a test."""
    weights, made = near(model), {}

    def get(engine: str):
        if engine not in made:
            made[engine] = HuggingFaceTarget(weights) if engine == "transformers" else on(engine, weights)
        return made[engine]

    return get


@pytest.fixture(scope="module")
def greedy(model):
    return [greedy_by_recompute(model, prompt, NEW) for prompt in (PROMPT, PROMPT[2:], PROMPT[6:])]


def drafts_of(drafter, steps: int):
    """Drafts of two lanes in company, with accepted paths of all lengths: the same in every call."""
    draw = random.Random(1)
    contexts = [DraftContext(list(prompt), VOCAB, sampler=Sampler(do_sample=True)) for prompt in (PROMPT, [5, 6])]
    states = [drafter.start(context) for context in contexts]
    drafts = []
    for step in range(steps):
        for lane, context in enumerate(contexts):
            context.coins = SeededCoins(lane).at(step).drafting()
        made = drafter.propose(states, contexts, [9, 5])
        records = []
        for draft, context in zip(made, contexts, strict=True):
            node = draw.randrange(len(draft.tree))
            bonus = draw.randrange(VOCAB)
            records.append(StepRecord(draft, Verdict(tuple(draft.tree.path(node)), bonus), ()))
            context.tokens = [*context.tokens, *(draft.tree.tokens[i] for i in draft.tree.path(node)[1:]), bonus]
        drafter.observe(states, records)
        drafts += made
    for state in states:
        drafter.finish(state)
    return drafts


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_model_on_transformers(drafting, kind, engine):
    expected = drafts_of(small(drafting("transformers"), kind), steps=12)
    found = drafts_of(small(drafting(engine), kind), steps=12)
    assert [draft.tree for draft in found] == [draft.tree for draft in expected]
    assert max(draft.tree.height for draft in found) >= 3
    for one, other in zip(found, expected, strict=True):
        assert one.scores == pytest.approx(other.scores, rel=1e-3, abs=1e-6)
        for mine, theirs in zip(one.proposals, other.proposals, strict=True):
            assert isinstance(mine, Sampled) == (kind == "sampled")
            if isinstance(mine, Sampled):
                torch.testing.assert_close(mine.vector, theirs.vector, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("where", ["alone", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_output_is_plain_decoding_and_the_cache_stays_in_step(model, greedy, drafting, kind, where):
    """Several lanes; mixed, the model is asked now and then, so that its cache has gaps to catch up with."""
    drafter = small(drafting("native"), kind)

    def lane_of(state, context):
        return (state if where == "alone" else state.sources[2].inner).lane, context.tokens

    outer = drafter if where == "alone" else mixed_with(drafter, "ynnyn")
    checked = CacheChecked(outer, drafter, lane_of, tolerance=1e-4)
    target = NativeTarget(model, weights="f32", threads=1)
    output = Speculator(target, drafter=checked, budget=9).generate(
        BATCH, attention_mask=MASK, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
    )
    assert output.sequences[:, 9:].tolist() == greedy
    assert checked.checked > 15
    assert max(generation.tokens_per_step for generation in output.branchwise) > 1.4
    assert drafter._lanes.model.cache.lanes == () and target.cache.lanes == ()
    drafter._lanes.model.cache.check_integrity()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["dynamic", "chain", "sampled"])
def test_a_seed_gives_the_tokens_of_plain_sampling(model, drafting, kind, engine):
    options = {"max_new_tokens": NEW, "do_sample": True, "seed": 4, "temperature": 0.9, "top_p": 0.95}
    target = NativeTarget(model, weights="f32", threads=1)
    plain = Speculator(target, drafter="none").complete(PROMPT, **options).tokens
    for drafter in (small(drafting(engine), kind), mixed_with(small(drafting(engine), kind), "yyn")):
        assert Speculator(target, drafter=drafter, budget=9).complete(PROMPT, **options).tokens == plain


@pytest.mark.parametrize("engine", ENGINES)
def test_hundreds_of_steps_whose_drafts_are_all_wrong_leave_no_rows_behind(drafting, engine):
    drafter = small(drafting(engine), "dynamic")
    context = DraftContext(list(PROMPT), VOCAB)
    state = drafter.start(context)
    cache = drafter._lanes.model.cache
    for step in range(200):
        (draft,) = drafter.propose([state], [context], [9])
        assert len(draft.tree) == 9
        wrong = next(token for token in range(VOCAB) if draft.tree.child_with(0, token) is None)
        drafter.observe([state], [StepRecord(draft, Verdict((0,), wrong), ())])
        context.tokens = [*context.tokens, wrong]
        cache.check_integrity()
        assert cache.length(state.lane.number) == len(PROMPT) + step, "all but the next root"
    fresh = HuggingFaceTarget(drafter._lanes.model.model)
    lane = fresh.open()
    fresh.prefill(lane, context.tokens)
    for layer in range(2):
        for mine, theirs in zip(cache.rows(state.lane.number, layer), fresh.cache.rows(lane, layer), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    drafter.finish(state)
    assert cache.lanes == () and cache.pool.shape[1] == 1


@pytest.mark.parametrize("engine", ["transformers", *ENGINES])
def test_rows_of_accepted_tokens_are_not_run_again(drafting, engine):
    drafter = small(drafting(engine), "dynamic", depth=4, width=2)
    context = DraftContext(list(PROMPT), VOCAB)
    state = drafter.start(context)
    (draft,) = drafter.propose([state], [context], [20])
    path = draft.tree.path(draft.tree.depth.index(4))
    drafter.observe([state], [StepRecord(draft, Verdict(tuple(path), 3), ())])
    # the deepest one was never run, and the bonus token neither
    assert drafter._lanes.length(state.lane) == len(PROMPT) + 3
    drafter.finish(state)


@pytest.mark.parametrize("engine", ENGINES)
def test_long_gaps_are_caught_up_with_in_pieces(model, drafting, engine, monkeypatch):
    monkeypatch.setattr("branchwise.draft.model_lanes.CHAIN_TOKENS", 8)
    drafter = small(drafting(engine), "dynamic")
    outer = mixed_with(drafter, "y" + "n" * 30 + "y")
    checked = CacheChecked(
        outer, drafter, lambda state, context: (state.sources[2].inner.lane, context.tokens), tolerance=1e-4
    )
    output = Speculator(model, drafter=checked, budget=5).complete(PROMPT, max_new_tokens=70, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 70)
    assert min(checked.lengths) < -8


def test_a_level_is_one_forward_over_its_new_nodes_alone(drafting, monkeypatch):
    drafter = small(drafting("native"), "dynamic", depth=4, width=3)
    target, runs = drafter._lanes.model, []
    run = target._run
    monkeypatch.setattr(
        target,
        "_run",
        lambda trees, layers, wanted: (
            runs.append((sum(map(len, trees.values())), len(wanted))) or run(trees, layers, wanted)
        ),
    )
    contexts = [DraftContext(list(PROMPT), VOCAB), DraftContext([5, 6], VOCAB)]
    states = [drafter.start(context) for context in contexts]
    runs.clear()
    drafter.propose(states, contexts, [40, 40])
    assert runs == [(2, 2), (6, 6), (6, 6), (6, 6)], "nodes and rows of logits of every forward"


def test_a_text_in_another_tokenizer_is_followed(model):
    """Tokens at the end of the text change from step to step: rows are forgotten, and read again."""
    own, target = byte_level_bpe(400), byte_level_bpe(600)
    model = tiny_llama(vocab_size=len(target)).float()
    drafter = small(on("native", tiny_llama(seed=3, vocab_size=len(own)).float()), "dynamic")
    checked = CacheChecked(
        TextBridge(drafter, own, target),
        drafter,
        lambda state, context: (state.inner.lane, state.context.tokens),
        tolerance=1e-4,
    )
    prompt = target.encode("The quick brown fox", add_special_tokens=False)
    output = Speculator(model, drafter=checked, budget=9).complete(
        prompt, max_new_tokens=24, do_sample=False, eos_token_id=None
    )
    assert list(output.tokens) == greedy_by_recompute(model, prompt, 24)
    assert checked.checked > 5


@pytest.mark.parametrize("name", ["model", "mixed", "sampled", "auto"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_draft_model_runs_on_the_engine_of_its_target(model, greedy, engine, name):
    target = on(engine, model)
    other = near(model)
    for _ in range(2):
        made = make_drafter(name, target=target, draft_model=other)
        drafter = made if name == "model" else (made._drafter if name == "sampled" else made).sources[2]._drafter
        assert drafter._lanes.model.engine == engine and drafter._lanes.model.weights == "f32"
        assert drafter._lanes.model is not target.beside(other), "every drafter has lanes of its own"
    speculator = Speculator(target, drafter=name, drafter_options={"draft_model": other}, budget=9)
    output = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == greedy[0]


def test_a_draft_model_that_the_engine_does_not_take_runs_on_transformers_and_says_so(model, greedy):
    target = NativeTarget(model, weights="f32", threads=1)
    other = build(next(family for family in SUPPORTED if family.name == "gpt2"), seed=5).float()
    with pytest.warns(BranchwiseWarning, match="the draft model runs on transformers: .*'gpt2'"):
        speculator = Speculator(target, drafter="model", drafter_options={"draft_model": other}, budget=9)
    assert isinstance(speculator.drafter._lanes.model, HuggingFaceTarget)
    assert list(speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False).tokens) == greedy[0]


def test_the_target_may_draft_for_itself(model, greedy):
    target = NativeTarget(model, weights="f32", threads=1)
    speculator = Speculator(target, drafter=SmallModelDrafter(target, depth=4, width=3), budget=13)
    output = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == greedy[0]
    assert output.tokens_per_step > 3


def test_a_target_that_cannot_grow_trees_is_refused():
    with pytest.raises(ValueError, match="a Told cannot draft: trees cannot grow level by level in it; give the model"):
        SmallModelDrafter(type("Told", (), {})())


def test_the_command_line_drafts_on_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    folder = str(save_tiny_model(tmp_path / "model"))
    common = ["generate", "abc abc", "--model", folder, "--max-new-tokens", "8", "--json", "--threads", "1"]
    expected = json.loads(CliRunner().invoke(app, [*common, "--drafter", "none"]).stdout)["text"]
    made = []
    monkeypatch.setattr(
        NativeTarget, "for_drafting", lambda self, own=NativeTarget.for_drafting: made.append(self) or own(self)
    )
    drafting = ["--draft-model", folder, "--engine", "native", "--weights", "f32"]
    result = CliRunner().invoke(app, [*common, "--drafter", "model", *drafting])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["text"] == expected and record["tokens_per_step"] > 1
    assert [target.weights for target in made] == ["f32"]


SAMPLING = ["--temperature", "0.7", "--seed", "0", "--rule", "traversal"]


@pytest.mark.parametrize(
    ("methods", "more"),
    [
        ("plain,tree:model+chain,tree:model,tree:mixed+model", []),
        ("tree:model+sampled,tree:mixed+model+sampled", SAMPLING),
    ],
)
def test_a_bench_drafts_on_the_engine_with_one_set_of_weights(methods, more, tmp_path, monkeypatch):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    folder = str(save_tiny_model(tmp_path / "model"))
    made = []
    monkeypatch.setattr(
        NativeTarget, "for_drafting", lambda self, own=NativeTarget.for_drafting: made.append(self) or own(self)
    )
    prompts, results = tmp_path / "prompts.jsonl", tmp_path / "bench.json"
    prompts.write_text(json.dumps({"question_id": 1, "category": "c", "topic": "t", "turns": ["abc abc"]}) + "\n")
    engine = ["--engine", "native", "--weights", "int8", "--draft-model", folder, "--threads", "1"]
    result = CliRunner().invoke(
        app,
        ["bench", "prompts", str(prompts), "--model", folder, "--methods", methods, "--budgets", "5,9", *engine, *more]
        + ["--max-new-tokens", "8", "--json", str(results)],
    )
    assert result.exit_code == 0, result.output
    assert len(made) >= 4 and len({id(target) for target in made}) == 1, "weights are made ready once"
    settings = json.loads(results.read_text())["settings"]
    assert (settings["draft_engine"], settings["draft_weights"]) == ("native", "int8")
