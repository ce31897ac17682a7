"""Things go wrong in the middle: nothing is left behind, and a drafter's fault never changes the text."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from branchwise import BranchwiseWarning, Speculator
from branchwise.decode.session import Session
from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree
from branchwise.tune.budget import FixedBudget
from branchwise.verify.greedy import Greedy
from branchwise.verify.match import Match
from branchwise.verify.proposal import DraftTree
from loop_rig import ScriptedTarget, WildTrees, finish, greedy_request
from oracles import greedy_by_recompute
from zoo import LENGTH_DEPENDENT, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
OTHER = [1, 2, 3, 4, 5, 6, 7, 8, 9]
IDS = torch.tensor([PROMPT])
BATCH = torch.tensor([PROMPT, OTHER])
NEW = 16


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def futures(model):
    return {tuple(prompt): greedy_by_recompute(model, prompt, NEW) for prompt in (PROMPT, OTHER)}


def state_of(model) -> dict:
    """Everything of a model that a generation could leave changed."""
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._forward_hooks_with_kwargs)) for m in model.modules()
    ]
    return {
        "config": copy.deepcopy(model.config.to_dict()),
        "generation config": copy.deepcopy(model.generation_config.to_dict()),
        "attention": [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")],
        "hooks": hooks,
        "mode": [m.training for m in model.modules()],
        "gradients": torch.is_grad_enabled(),
        "tensors": {n: t.clone() for n, t in [*model.named_parameters(), *model.named_buffers(remove_duplicate=False)]},
    }


def assert_as_found(model, before: dict) -> None:
    after = state_of(model)
    tensors, same = after.pop("tensors"), before.pop("tensors")
    assert after == before
    assert tensors.keys() == same.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, same[name]), name


# drafters that fail


class FailsAt(WildTrees):
    """Raises at its n-th call of one method."""

    def __init__(self, futures, method: str, call: int, error=None) -> None:
        super().__init__(futures, right=0.8)
        self._method, self._call, self._error = method, call, error or RuntimeError("no idea")
        self.calls = 0

    def _maybe_fail(self, method: str) -> None:
        if method == self._method:
            self.calls += 1
            if self.calls == self._call:
                raise self._error

    def start(self, context):
        self._maybe_fail("start")
        return super().start(context)

    def propose(self, states, contexts, budgets):
        self._maybe_fail("propose")
        return super().propose(states, contexts, budgets)

    def observe(self, states, records):
        self._maybe_fail("observe")


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize("method", ["propose", "observe"])
def test_a_drafter_that_fails_costs_one_warning_and_not_the_text(model, futures, method, call):
    drafter = FailsAt(futures, method, call)
    with pytest.warns(BranchwiseWarning, match=r"'wild' failed \(RuntimeError: no idea\).*plain decoding") as caught:
        output = Speculator(model, drafter=drafter, budget=12).generate(
            BATCH, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
        )
    assert len(caught) == 1
    assert output.sequences[:, 9:].tolist() == list(futures.values())
    for generation in output.branchwise:
        failed_at = call - 1 if method == "propose" else call
        assert all(len(record.draft.tree) == 1 for record in generation.records[failed_at:])
    assert drafter.calls == call, "it is not asked again in this generation"


def test_the_warning_points_at_the_users_line(model, futures):
    for call in ("complete", "generate"):
        speculator = Speculator(model, drafter=FailsAt(futures, "propose", 1), budget=12)
        with pytest.warns(BranchwiseWarning) as caught:
            getattr(speculator, call)(PROMPT if call == "complete" else IDS, max_new_tokens=4, do_sample=False)
        assert caught[0].filename == __file__


def test_a_drafter_that_fails_gets_its_lanes_back(model, futures):
    """A drafter may hold something per lane, such as a lane of its own model."""
    finished = []

    class Holds(FailsAt):
        def finish(self, state):
            finished.append(state)
            raise RuntimeError("this one even fails to let go")

    with pytest.warns(BranchwiseWarning) as caught:
        Speculator(model, drafter=Holds(futures, "observe", 2), budget=12).generate(
            BATCH, max_new_tokens=NEW, do_sample=False
        )
    assert len(caught) == 1
    assert finished == [tuple(PROMPT), tuple(OTHER)]


def test_a_drafter_that_fails_under_sampling_gives_the_seeds_text(model, futures):
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.3, "seed": 5}
    expected = Speculator(model, drafter="none").complete(PROMPT, **options).tokens
    with pytest.warns(BranchwiseWarning):
        output = Speculator(model, drafter=FailsAt(futures, "observe", 3), budget=12).complete(PROMPT, **options)
    assert output.tokens == expected


def test_the_next_request_gives_the_drafter_another_chance(model, futures):
    speculator = Speculator(model, drafter=FailsAt(futures, "propose", 1), budget=12)
    with pytest.warns(BranchwiseWarning):
        speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == futures[tuple(PROMPT)] and output.accepted_drafts > 0


def test_a_drafter_is_not_forgiven_an_interruption(model, futures):
    speculator = Speculator(model, drafter=FailsAt(futures, "propose", 2, KeyboardInterrupt()), budget=12)
    with pytest.raises(KeyboardInterrupt):
        speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert speculator.target.cache.lanes == ()


def test_a_drafter_that_cannot_start_is_an_error_and_leaves_no_lane(model, futures):
    speculator = Speculator(model, drafter=FailsAt(futures, "start", 2), budget=12)
    with pytest.raises(RuntimeError, match="no idea"):
        speculator.generate(BATCH, max_new_tokens=NEW, do_sample=False)
    assert speculator.target.cache.lanes == ()


class Proposes:
    """Proposes whatever it is told, for every lane."""

    name = "told"
    feature_layers = ()

    def __init__(self, make) -> None:
        self._make = make

    def start(self, context):
        return None

    def propose(self, states, contexts, budgets):
        return [self._make(context) for context in contexts]

    def observe(self, states, records):
        pass


def draft(tokens, parents) -> DraftTree:
    return DraftTree.deterministic(TokenTree(tokens, parents))


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda context: draft((99, 1), (-1, 0)), "root 99, not the last token 23"),
        (lambda context: draft((23,) * 9, range(-1, 8)), "9 nodes under a budget of 6"),
        (lambda context: draft((23, 1, 2, 3, 4, 5), range(-1, 5)), "depth 5 where 3 is the limit"),
        (lambda context: draft((23, 37), (-1, 0)), "token 37 in a vocabulary of 37"),
    ],
    ids=["root", "budget", "depth", "vocabulary"],
)
def test_a_tree_that_breaks_the_protocol_is_an_error_that_says_how(model, make, match):
    speculator = Speculator(model, drafter=Proposes(make), budget=6)
    with pytest.raises(ValueError, match=f"'told' proposed a tree with {match}"):
        speculator.complete(PROMPT, max_new_tokens=4, do_sample=False)
    assert speculator.target.cache.lanes == ()


@pytest.mark.parametrize(
    "make", [lambda context: None, lambda context: TokenTree((23,), (-1,))], ids=["None", "a bare tree"]
)
def test_something_that_is_no_draft_is_an_error_that_says_so(model, make):
    speculator = Speculator(model, drafter=Proposes(make), budget=6)
    with pytest.raises((TypeError, ValueError), match="'told' proposed"):
        speculator.complete(PROMPT, max_new_tokens=4, do_sample=False)
    assert speculator.target.cache.lanes == ()


def test_a_drafter_that_forgets_a_lane_is_an_error_that_says_so(model):
    class Forgetful(Proposes):
        def propose(self, states, contexts, budgets):
            return super().propose(states, contexts, budgets)[1:]

    speculator = Speculator(model, drafter=Forgetful(lambda context: draft(context.tokens[-1:], (-1,))), budget=6)
    with pytest.raises(ValueError, match="'told' proposed 1 trees for 2 lanes"):
        speculator.generate(BATCH, max_new_tokens=4, do_sample=False)
    assert speculator.target.cache.lanes == ()


def test_twins_among_siblings_are_refused_by_match_and_served_by_greedy(model, futures):
    def twins(context):
        root, right = context.tokens[-1], futures[tuple(PROMPT)][len(context.tokens) - 9]
        return draft((root, right, right), (-1, 0, 0)) if context.max_depth else draft((root,), (-1,))

    speculator = Speculator(model, drafter=Proposes(twins), budget=6)
    output = speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    assert list(output.tokens) == futures[tuple(PROMPT)] and output.accepted_drafts == NEW // 2
    with pytest.raises(ValueError, match="sibling"):
        speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=True, seed=0)
    assert speculator.target.cache.lanes == ()


# logits that are no numbers


class NanAt(ScriptedTarget):
    """Its logits at some nodes (by number) of the n-th tree are NaN."""

    def __init__(self, script, nan_nodes, forward: int) -> None:
        super().__init__(script, vocab_size=37)
        self._nan_nodes, self._at, self._forwards = list(nan_nodes), forward, 0

    def forward(self, trees, feature_layers=()):
        outputs = super().forward(trees, feature_layers)
        self._forwards += 1
        if self._forwards == self._at:
            for output in outputs.values():
                output.logits[self._nan_nodes] = torch.nan
        return outputs


class Comb:
    """Right token i at node 2 i, a wrong sibling before it."""

    name = "comb"
    feature_layers = ()

    def __init__(self, script) -> None:
        self._script = script

    def start(self, context):
        return None

    def propose(self, states, contexts, budgets):
        drafts = []
        for context in contexts:
            right = self._script[len(context.tokens) :][: min(3, context.max_depth)]
            tokens, parents = [context.tokens[-1]], [-1]
            for depth, token in enumerate(right):
                tokens += [(token + 1) % 37, token]
                parents += [2 * depth] * 2
            drafts.append(draft(tokens, parents))
        return drafts

    def observe(self, states, records):
        pass


@pytest.mark.parametrize("rule, sampled", [(Greedy(), False), (Match(), True)], ids=["greedy", "match"])
# (a root that is NaN with drafts beside it is asked again without them, and this one then is none)
@pytest.mark.parametrize("nodes, raises", [([1, 3, 5], None), ([0], None), ([4], 4), ([6, 5, 2], 2)], ids=str)
def test_only_a_node_that_is_visited_can_raise_and_the_first_one_does(rule, sampled, nodes, raises):
    script = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    target = NanAt(script, nodes, forward=2)
    session = Session(target, Comb(script), FixedBudget(7))
    request = greedy_request(script[:2], 12)
    if sampled:
        # weights of 10 against 0 over 37 tokens: the scripted token has all but 0.2% of the mass, and this seed hits it
        from dataclasses import replace

        from branchwise.verify.law import Sampler

        request = replace(request, sampler=Sampler(do_sample=True), seed=1)
    lane = session.add(request, rule)
    session.step()
    assert lane.generated == script[2:6]
    if raises is None:
        finish(session)
        assert lane.generated == script[2:14]
        return
    with pytest.raises(ValueError, match=rf"(?s)node {raises} .*NaN.*no token was chosen"):
        session.step()
    assert lane.generated == script[2:6], "no token of the broken step was emitted"
    session.close()
    assert target.lengths == {}


def test_a_model_whose_logits_are_nan_raises_before_the_first_token():
    model = tiny_llama()
    model.get_output_embeddings().weight.data[5] = torch.nan
    speculator = Speculator(model, budget=5)
    seen = []

    class Watcher(BaseStreamer):
        def put(self, value):
            seen.append(value)

        def end(self):
            seen.append("end")

    for do_sample in (False, True):
        with pytest.raises(ValueError, match="NaN"):
            speculator.generate(IDS, max_new_tokens=4, do_sample=do_sample, streamer=Watcher())
        assert speculator.target.cache.lanes == ()
    assert len(seen) == 2, "the prompt of either call, and no token"


# exceptions of the user's own


class Refuses(StoppingCriteria):
    def __init__(self, after: int) -> None:
        self._left = after

    def __call__(self, input_ids, scores, **kwargs):
        self._left -= 1
        if self._left == 0:
            raise OSError("disk full")
        return torch.zeros(len(input_ids), dtype=torch.bool)


class BrokenStreamer(BaseStreamer):
    def __init__(self, after: int) -> None:
        self._left = after

    def put(self, value):
        self._left -= 1
        if self._left == 0:
            raise OSError("disk full")

    def end(self):
        raise AssertionError("the text did not end")


def broken_processor(after: int):
    left = [after]

    def process(input_ids, scores):
        left[0] -= 1
        if left[0] == 0:
            raise OSError("disk full")
        return scores

    return process


@pytest.mark.parametrize("after", [1, 2, 7])
@pytest.mark.parametrize("where", ["streamer", "criterion", "processor"])
def test_an_exception_in_a_callback_frees_everything(model, futures, where, after):
    before = state_of(model)
    speculator = Speculator(model, drafter=WildTrees(futures, right=0.8), budget=12)
    options = {
        "streamer": {"streamer": BrokenStreamer(after)},
        "criterion": {"stopping_criteria": [Refuses(after)]},
        "processor": {"logits_processor": [broken_processor(after)]},
    }[where]
    with pytest.raises(OSError, match="disk full"):
        speculator.generate(IDS, max_new_tokens=NEW, do_sample=False, **options)
    assert speculator.target.cache.lanes == ()
    assert speculator.target.cache.nbytes == 0
    assert_as_found(model, before)
    output = speculator.generate(IDS, max_new_tokens=NEW, do_sample=False)
    assert output[0, 9:].tolist() == futures[tuple(PROMPT)], "and the next request is as good as new"


def test_an_exception_in_on_tokens_leaves_lanes_for_close(model, futures):
    def fail(tokens):
        raise OSError("disk full")

    session = Session(HuggingFaceTarget(model), WildTrees(futures), FixedBudget(8))
    session.add(greedy_request(PROMPT, NEW, on_tokens=fail), Greedy())
    session.add(greedy_request(OTHER, NEW), Greedy())
    with pytest.raises(OSError):
        session.step()
    session.close()
    session.close()
    assert session.target.cache.lanes == ()


def test_on_tokens_gets_every_run_in_order(model, futures):
    runs = []
    session = Session(HuggingFaceTarget(model), WildTrees(futures, right=0.9), FixedBudget(12))
    lane = session.add(greedy_request(PROMPT, NEW, on_tokens=runs.append), Greedy())
    finish(session)
    assert [token for run in runs for token in run] == lane.generated == futures[tuple(PROMPT)]
    assert runs == [record.tokens for record in lane.records]


# interruptions


@pytest.mark.parametrize("forward", [1, 2, 3, 5])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("family", ["llama", "llama-dynamic"])
def test_ctrl_c_in_a_forward_leaves_an_empty_cache_and_the_model_as_found(family, forward, layer):
    """Forwards 1 and 2 prefill the two prompts; the others score trees."""
    model = tiny_llama() if family == "llama" else build(LENGTH_DEPENDENT[0])
    before = state_of(model)
    speculator = Speculator(model, budget=9)
    calls = [0]

    def interrupt(*_):
        calls[0] += 1
        if calls[0] == forward:
            raise KeyboardInterrupt

    handle = model.model.layers[layer].mlp.register_forward_pre_hook(interrupt)
    ids, new = (BATCH, NEW) if family == "llama" else (torch.tensor([PROMPT, OTHER]), 14)
    try:
        with pytest.raises(KeyboardInterrupt):
            speculator.generate(ids, max_new_tokens=new, do_sample=False)
    finally:
        handle.remove()
    assert calls[0] == forward
    assert speculator.target.cache.lanes == ()
    assert speculator.target.cache.nbytes == 0
    speculator.target.cache.check_integrity()
    assert_as_found(model, before)
    expected = greedy_by_recompute(model, PROMPT, 6)
    assert list(speculator.complete(PROMPT, max_new_tokens=6, do_sample=False).tokens) == expected


@pytest.mark.parametrize("moment", ["commit", "prefill commit"])
def test_ctrl_c_in_a_commit_leaves_an_empty_cache(model, monkeypatch, moment):
    """Some layers have counted their rows, the others have not."""
    speculator = Speculator(model, budget=9)
    layer = speculator.target.cache.layers[1]
    own, calls = layer.count, [0]

    def interrupt(*args):
        calls[0] += 1
        if calls[0] == (1 if moment == "prefill commit" else 3):
            raise KeyboardInterrupt
        own(*args)

    monkeypatch.setattr(layer, "count", interrupt)
    with pytest.raises(KeyboardInterrupt):
        speculator.complete(PROMPT, max_new_tokens=NEW, do_sample=False)
    monkeypatch.setattr(layer, "count", own)
    assert speculator.target.cache.lanes == ()
    speculator.target.cache.check_integrity()
    assert list(speculator.complete(PROMPT, max_new_tokens=6, do_sample=False).tokens) == greedy_by_recompute(
        model, PROMPT, 6
    )


def test_memory_that_runs_out_in_a_forward_frees_everything(model):
    speculator = Speculator(model, budget=9)

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    handle = model.model.layers[1].register_forward_pre_hook(fail)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            speculator.complete(PROMPT, max_new_tokens=4, do_sample=False)
    finally:
        handle.remove()
    assert speculator.target.cache.nbytes == 0


def test_a_drafted_token_that_breaks_its_own_branch_breaks_no_other(model, futures):
    """One row of the embedding is NaN: plain decoding never meets it, a draft may."""
    broken = copy.deepcopy(model)
    unused = next(t for t in range(37) if not any(t in f or t in p for p, f in futures.items()))
    broken.get_input_embeddings().weight.data[unused] = torch.nan

    def with_the_broken_token(context):
        future = futures[tuple(PROMPT)][len(context.tokens) - 9 :][: context.max_depth]
        tokens = [context.tokens[-1], unused, *future[:3]]
        return draft(tokens, [-1, 0, 0, 2, 3][: len(tokens)]) if context.max_depth else draft(tokens[:1], (-1,))

    output = Speculator(broken, drafter=Proposes(with_the_broken_token), budget=6).complete(
        PROMPT, max_new_tokens=NEW, do_sample=False
    )
    assert list(output.tokens) == futures[tuple(PROMPT)]
    assert output.steps == NEW, "every tree was spoiled, and every step fell back to its root"


class Wrapper(torch.nn.Module):
    def __init__(self, model) -> None:
        super().__init__()
        self._orig_mod = model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Wrapper(torch.nn.Linear(1, 1)), "wrapper; give its ._orig_mod"),
        ("some/model", "must be a loaded transformers model or a Target, got str"),
    ],
)
def test_what_is_no_model_is_refused_with_a_remedy(model, says):
    with pytest.raises(TypeError, match=says):
        Speculator(model)
