"""Many requests in one engine: each gives what it gives alone, and nothing leaks, whoever comes and goes when."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import replace
from itertools import count

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from branchwise.decode.admission import QueueFull, RequestTooLarge
from branchwise.decode.engine import Engine
from branchwise.decode.handle import RequestCancelled
from branchwise.decode.stopping import StopRules
from branchwise.draft import SmallModelDrafter
from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from drafters import RandomTrees
from engine_rig import LONGEST, PROMPTS, SHARED, alone, model, outputs, request, run, small_engine
from oracles import greedy_by_recompute
from zoo import LENGTH_DEPENDENT, SUPPORTED, build, tiny_llama

pytestmark = pytest.mark.core


# each request's output is its output alone


@pytest.mark.parametrize("order", range(3))
def test_outputs_are_those_of_each_request_alone(order):
    """More requests than lanes and rows: they queue, are read in chunks, share prefixes and make room."""
    asked = [(prompt, seed) for prompt in range(len(PROMPTS)) for seed in (None, 11)]
    random.Random(order).shuffle(asked)
    engine = small_engine(max_lanes=5, pool_tokens=320)
    handles = []
    for prompt, seed in asked:
        handles.append(engine.submit(request(prompt, seed=seed)))
        engine.step()
        engine.check_integrity()
    run(engine)
    assert outputs(handles) == [alone(prompt, seed) for prompt, seed in asked]
    assert engine.statistics.finished == {"length": len(asked)}
    assert engine.target.cache.lanes == ()


@pytest.mark.parametrize(
    "family",
    [f for f in SUPPORTED if f.model_type in ("mistral", "gemma3_text", "falcon", "gpt2", "deepseek_v3", "qwen3_moe")],
    ids=lambda family: family.name,
)
def test_families_with_windows_and_other_caches(family):
    own = build(family)
    engine = small_engine(target=own, max_lanes=3, pool_tokens=320)
    expected, handles = [], []
    for prompt in (3, 4, 5, 1, 6):
        expected.append(tuple(greedy_by_recompute(own, list(PROMPTS[prompt]), 12)))
        handles.append(engine.submit(request(prompt, 12)))
        engine.step()
    run(engine)
    assert outputs(handles) == expected


def small_model() -> SmallModelDrafter:
    return SmallModelDrafter(tiny_llama(seed=3, num_hidden_layers=1), depth=3, width=2)


@pytest.mark.parametrize(
    "drafter, options",
    [(small_model, None), ("early_exit", {"exit_layer": 1}), ("sampled", None), ("suffix", None)],
    ids=["small model", "early exit", "sampled", "suffix"],
)
def test_drafters_that_hold_lanes_of_their_own(drafter, options):
    engine = small_engine(
        drafter=drafter if isinstance(drafter, str) else drafter(),
        drafter_options=options,
        rule="match",
        max_lanes=3,
        pool_tokens=256,
        clock=count().__next__,  # every step costs the same: trees always pay
    )
    asked = [(3, 4), (6, 5), (1, 6), (5, 7), (2, 8)]
    handles = []
    for prompt, seed in asked:
        handles.append(engine.submit(request(prompt, seed=seed)))
        engine.step()
        engine.check_integrity()
    run(engine)
    assert outputs(handles) == [alone(prompt, seed) for prompt, seed in asked]
    assert all(handle.draft_error is None for handle in handles)
    assert engine.statistics.draft_tokens > 0


def test_a_preempted_request_goes_on_where_it_was():
    engine = small_engine(drafter=RandomTrees(), budget=7, max_lanes=4, pool_tokens=256, prefix_bytes=0)
    engine.pool.block_rows, engine.pool.blocks = 8, 26
    handles = [engine.submit(request(prompt, seed=seed)) for prompt, seed in ((3, None), (3, 4), (2, 5), (1, None))]
    run(engine)
    assert outputs(handles) == [alone(3, None), alone(3, 4), alone(2, 5), alone(1, None)]
    assert engine.statistics.preemptions > 0
    assert handles[0].preemptions == 0, "the oldest never makes room"


class Arrivals(RuleBasedStateMachine):
    """Requests of all kinds arrive, are cancelled and finish in any order."""

    @initialize(lanes=st.integers(1, 4), rows=st.sampled_from([128, 192, 256, 512]), prefixes=st.booleans())
    def start(self, lanes: int, rows: int, prefixes: bool) -> None:
        self.engine = small_engine(
            max_lanes=lanes, pool_tokens=rows, prefix_bytes=2**20 if prefixes else 0, queue_limit=6
        )
        self.asked: list[tuple] = []

    @rule(prompt=st.integers(0, len(PROMPTS) - 1), new=st.integers(1, LONGEST), seed=st.sampled_from([None, 3, 8]))
    def submit(self, prompt: int, new: int, seed: int | None) -> None:
        try:
            handle = self.engine.submit(request(prompt, new, seed))
        except QueueFull:
            return
        self.asked.append((handle, alone(prompt, seed)[:new]))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.asked:
            data.draw(st.sampled_from([handle for handle, _ in self.asked])).cancel()

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
            self.engine.check_integrity()

    @invariant()
    def outputs_begin_as_they_should(self) -> None:
        for handle, expected in getattr(self, "asked", ()):
            assert handle.tokens == expected[: len(handle.tokens)]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        run(self.engine)
        assert self.engine.target.cache.lanes == () and not self.engine.session.active
        for handle, expected in self.asked:
            if isinstance(handle.error, RequestCancelled):
                assert handle.is_cancelled
            else:
                assert handle.result(timeout=0).tokens == expected


TestArrivals = Arrivals.TestCase
TestArrivals.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


# memory


def test_the_cache_stays_inside_the_pool():
    """One long lane leaves, many short ones come: what the long one left on the other axis is given back first."""
    engine = small_engine(max_lanes=12, pool_tokens=1024, prefix_bytes=0)
    engine.submit(request(3))
    long = request(3)
    engine.submit(type(long)(PROMPTS[3] * 7, long.sampler, StopRules(4)))
    seen = set()
    for _ in range(400):
        busy = engine.step()
        for layer in engine.target.cache.layers:
            if layer.is_initialized:
                assert layer.keys.shape[0] * layer.keys.shape[2] <= engine.pool.rows
                seen.add(tuple(layer.keys.shape[::2][:2]))
        if engine.statistics.steps == 6:
            for _ in range(11):
                engine.submit(request(1, 20))
        if not busy:
            break
    assert engine.statistics.finished == {"length": 13}
    assert len(seen) > 1


def test_what_can_never_fit_is_refused_with_the_numbers():
    engine = small_engine(pool_tokens=128)
    with pytest.raises(RequestTooLarge, match=r"30 prompt tokens and up to 100 new ones are 130 .* 128 rows holds 95"):
        engine.submit(request(3, 100))
    assert not engine.step()


@pytest.mark.parametrize("family", LENGTH_DEPENDENT, ids=lambda family: family.name)
def test_a_request_that_can_only_run_alone_is_refused(family):
    """Past a boundary the rotary frequencies of the whole batch would change."""
    own = build(family)
    engine = small_engine(target=own)
    with pytest.raises(RequestTooLarge, match=r"may pass 24 tokens.* at most 15,"):
        engine.submit(request(2, 16))
    handles = [engine.submit(request(2, 15)), engine.submit(request(1, 15))]
    run(engine)
    assert outputs(handles) == [tuple(greedy_by_recompute(own, list(PROMPTS[p]), 15)) for p in (2, 1)]


def test_a_full_queue_says_so_and_takes_requests_again_later():
    engine = small_engine(queue_limit=2)
    handles = [engine.submit(request(1, 2)) for _ in range(2)]
    with pytest.raises(QueueFull, match="2 requests wait already"):
        engine.submit(request(1, 2))
    engine.step()
    handles.append(engine.submit(request(2, 2)))
    run(engine)
    assert outputs(handles) == [alone(1, None)[:2]] * 2 + [alone(2, None)[:2]]
    assert engine.statistics.refused == 1


@pytest.mark.parametrize(
    "options, says",
    [
        ({"max_lanes": 0}, "max_lanes must be >= 1, got 0"),
        ({"queue_limit": 0}, "queue_limit must be >= 1"),
        ({"pool_tokens": 10}, "at least one block of 64 rows, got 10"),
        ({"prefix_bytes": -1}, "prefix_bytes must be >= 0"),
        ({"budget": 0}, "must be >= 1"),
        ({"drafter": "psychic"}, "no drafter is named"),
    ],
)
def test_bad_settings(options, says):
    with pytest.raises(ValueError, match=says):
        Engine(model(), **options)


# prefixes


def rows_of(target, lane):
    return [tuple(part.clone() for part in target.cache.rows(lane, layer)) for layer in range(len(target.windows))]


def test_a_known_beginning_is_copied_bit_for_bit():
    engine = small_engine(max_lanes=2)
    first = engine.submit(request(4))
    engine.step()
    rows = rows_of(engine.target, engine.session.active[0].number)
    second = engine.submit(request(5))
    engine.step()
    copied = rows_of(engine.target, engine.session.active[1].number)
    for one, other in zip(rows, copied, strict=True):
        for part, same in zip(one, other, strict=True):
            assert torch.equal(part[:, : len(SHARED)], same[:, : len(SHARED)])
    assert (first.reused_tokens, second.reused_tokens) == (0, len(SHARED))
    run(engine)
    assert outputs([first, second]) == [alone(4, None), alone(5, None)]


def test_prefixes_outlive_their_request_and_the_oldest_make_room():
    engine = small_engine()
    run_one = [engine.submit(request(4, 2))]
    run(engine)
    run_one.append(engine.submit(request(6, 2)))
    run(engine)
    assert [handle.reused_tokens for handle in run_one] == [0, 40]
    assert engine.statistics.reused_tokens == 40 and len(engine.prefixes) == 1
    assert 0 < engine.prefixes.nbytes <= engine.prefixes.limit_bytes
    tight = small_engine(prefix_bytes=engine.prefixes.nbytes)
    for start in (1, 2, 3):
        tokens = tuple((start + 3 * i) % 37 for i in range(41))
        tight.submit(type(request(0))(tokens, request(0).sampler, StopRules(2)))
        run(tight)
        assert len(tight.prefixes) == 1


# one request's fault is one request's end


class FailsAfter:
    """A processor that fails once the text has so many tokens."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] >= self._tokens:
            raise RuntimeError("this processor is broken")
        return scores


def test_a_broken_processor_ends_its_own_request():
    from branchwise.verify.law import Sampler

    engine = small_engine()
    broken = request(1)
    handles = [
        engine.submit(request(2)),
        engine.submit(type(broken)(broken.prompt, Sampler(False, [FailsAfter(8)]), broken.stop)),
        engine.submit(request(3, seed=6)),
    ]
    run(engine)
    assert outputs([handles[0], handles[2]]) == [alone(2, None), alone(3, 6)]
    with pytest.raises(RuntimeError, match="this processor is broken"):
        handles[1].result(timeout=0)
    # how many: the budget decides over how many nodes the calls spread
    assert handles[1].tokens and handles[1].tokens == alone(1, None)[: len(handles[1].tokens)]
    with pytest.raises(RuntimeError, match="this processor is broken"):
        list(handles[1])


#: a token that no prompt and no output of the tests below holds
NAN = next(token for token in range(37) if not any(token in (*PROMPTS[p], *alone(p, None)) for p in (0, 1, 3)))


def poisoned():
    """A model of its own for which one token is NaN, and stays NaN in the rows it leaves behind."""
    own = tiny_llama()
    own.get_input_embeddings().weight.data[NAN] = torch.nan
    return own


@pytest.mark.parametrize("cancelled", [False, True])
def test_nan_in_one_request_does_not_reach_who_gets_its_place(cancelled):
    """A short lane beside a long one sees the stale rows of its place, with a weight of zero: zero times NaN is NaN."""
    engine = small_engine(target=poisoned(), drafter="none", budget=1, max_lanes=2, prefix_bytes=0)
    long = engine.submit(request(3))
    nan = engine.submit(replace(request(1), prompt=(*range(1, 20), NAN, *range(1, 9))))
    engine.step()
    if cancelled:
        nan.cancel()
    engine.step()
    short = engine.submit(request(1, 12))
    run(engine)
    with pytest.raises(RequestCancelled if cancelled else ValueError):
        nan.result(timeout=0)
    assert outputs([long, short]) == [alone(3, None), alone(1, None)[:12]]


class DraftsNan:
    """Drafts the token that is NaN, until a long lane joins: then it lets everybody decode plainly."""

    name = "nan"
    feature_layers = ()

    def start(self, context):
        return None

    def propose(self, states, contexts, budgets):
        is_over = any(len(context.tokens) >= 30 for context in contexts)
        chains = [[] if is_over else [NAN] * min(3, context.max_depth) for context in contexts]
        return [
            DraftTree.deterministic(TokenTree.from_chain(context.tokens[-1], chain))
            for context, chain in zip(contexts, chains, strict=True)
        ]

    def observe(self, states, records):
        pass


def test_drafts_that_are_nan_do_not_stay_behind():
    """The rows of a spoiled tree lie past the end of their lanes, out of sight until a longer lane joins."""
    engine = small_engine(target=poisoned(), drafter=DraftsNan(), budget=5, max_lanes=3, prefix_bytes=0)
    handles = [engine.submit(request(prompt, 14)) for prompt in (1, 0)]
    engine.step()
    engine.step()
    handles.append(engine.submit(request(3, 14)))
    run(engine)
    assert outputs(handles) == [alone(prompt, None)[:14] for prompt in (1, 0, 3)]
    assert engine.statistics.drafts == 0, "spoiled trees are judged without their drafts"


def test_a_callback_that_fails_ends_its_own_request():
    def fails(run):
        raise OSError("the reader has gone")

    engine = small_engine()
    handles = [engine.submit(request(2)), engine.submit(request(1, on_tokens=fails))]
    run(engine)
    assert outputs(handles[:1]) == [alone(2, None)]
    with pytest.raises(OSError, match="the reader has gone"):
        handles[1].result(timeout=0)


class FailsFor(RandomTrees):
    """Fails for contexts that begin with one token, in one of its methods."""

    def __init__(self, token: int, method: str) -> None:
        super().__init__()
        self._token, self._method = token, method
        self.finished = 0

    def _look(self, method, contexts):
        if method == self._method and any(context.tokens[0] == self._token for context in contexts):
            raise RuntimeError("no idea")

    def start(self, context):
        self._look("start", [context])
        return context

    def propose(self, states, contexts, budgets):
        self._look("propose", contexts)
        drafts = super().propose(states, contexts, budgets)
        if self._method == "wrong root":
            for at, context in enumerate(contexts):
                if context.tokens[0] == self._token:
                    drafts[at] = DraftTree.deterministic(TokenTree((context.tokens[-1] + 1,), (-1,)))
        return drafts

    def observe(self, states, records):
        self._look("observe", states)

    def finish(self, state):
        self.finished += 1


@pytest.mark.filterwarnings("default::branchwise.BranchwiseWarning")
@pytest.mark.parametrize("method", ["propose", "observe", "wrong root"])
def test_a_failing_drafter_costs_a_request_its_drafts_and_not_its_text(method):
    drafter = FailsFor(PROMPTS[1][0], method)
    engine = small_engine(drafter=drafter, budget=6)
    asked = (3, 1, 0)
    handles = [engine.submit(request(prompt)) for prompt in asked]
    run(engine)
    assert outputs(handles) == [alone(prompt, None) for prompt in asked]
    assert handles[1].draft_error is not None
    if method != "observe":
        assert handles[0].draft_error is None and handles[2].draft_error is None, "only the culprit"
    assert drafter.finished == 3


def test_a_drafter_that_cannot_start_for_a_request_ends_that_request():
    engine = small_engine(drafter=FailsFor(PROMPTS[1][0], "start"), budget=6)
    handles = [engine.submit(request(3)), engine.submit(request(1))]
    run(engine)
    assert outputs(handles[:1]) == [alone(3, None)]
    with pytest.raises(RuntimeError, match="no idea"):
        handles[1].result(timeout=0)


class FailsForward(HuggingFaceTarget):
    """Some forwards over trees fail."""

    def __init__(self, own, error, at) -> None:
        super().__init__(own)
        self._own_error, self._fails_at, self.forwards = error, at, 0

    def forward(self, trees, feature_layers=()):
        self.forwards += 1
        if self.forwards in self._fails_at:
            raise self._own_error
        return super().forward(trees, feature_layers)


def test_a_forward_that_fails_ends_those_who_ran_and_nobody_else():
    target = FailsForward(model(), RuntimeError("the device is tired"), {3})
    engine = small_engine(target=target, max_lanes=2)
    handles = [engine.submit(request(prompt, 8)) for prompt in (1, 2, 3)]
    run(engine)
    assert [type(handle.error) for handle in handles] == [RuntimeError, RuntimeError, type(None)]
    assert outputs(handles[2:]) == [alone(3, None)[:8]]


def test_short_memory_makes_the_youngest_wait():
    target = FailsForward(model(), torch.OutOfMemoryError("no more"), {3, 4})
    engine = small_engine(target=target, max_lanes=3)
    handles = [engine.submit(request(prompt)) for prompt in (1, 2, 3)]
    run(engine)
    assert outputs(handles) == [alone(prompt, None) for prompt in (1, 2, 3)]
    assert engine.statistics.preemptions == 2 and handles[0].preemptions == 0


# from other threads


def test_submitting_and_reading_from_many_threads():
    seen = {}

    def use(engine, prompt):
        handle = engine.submit(request(prompt, seed=prompt))
        seen[prompt] = tuple(token for run in handle for token in run), handle.result(timeout=60).tokens

    with small_engine(max_lanes=3).start() as engine:
        threads = [threading.Thread(target=use, args=(engine, prompt)) for prompt in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert seen == {prompt: (alone(prompt, prompt),) * 2 for prompt in range(len(PROMPTS))}


def test_reading_in_an_event_loop():
    async def read(engine):
        handles = [engine.submit(request(prompt)) for prompt in (1, 2)]

        async def tokens(handle):
            return tuple([token async for run in handle for token in run])

        return await asyncio.gather(*map(tokens, handles))

    with small_engine().start() as engine:
        assert asyncio.run(read(engine)) == [alone(1, None), alone(2, None)]


def test_cancelling_frees_the_lane_and_wakes_who_waits():
    with small_engine().start() as engine:
        handle, other = engine.submit(request(1)), engine.submit(request(2))
        next(iter(handle))
        handle.cancel()
        assert other.result(timeout=60).tokens == alone(2, None)
        if handle.error is not None:  # it may have been done before it was cancelled
            with pytest.raises(RequestCancelled, match="request 0 was cancelled"):
                handle.result(timeout=60)
    assert engine.target.cache.lanes == ()


@pytest.mark.parametrize("drain", [True, False])
def test_shutting_down_lets_requests_finish_or_ends_them(drain, monkeypatch):
    # the first request holds the only lane until the end has begun: nobody is quicker than the shutdown
    ending = threading.Event()
    engine = small_engine(max_lanes=1).start()
    first = engine.submit(request(1, on_tokens=lambda tokens: ending.wait(60)))
    handles = [first, *(engine.submit(request(prompt)) for prompt in (2, 3))]
    cancel_all = engine.cancel_all
    monkeypatch.setattr(engine, "cancel_all", lambda: (cancel_all(), ending.set()))
    if drain:
        ending.set()
    engine.shutdown(drain=drain, timeout=60)
    assert all(handle.is_done for handle in handles)
    if drain:
        assert outputs(handles) == [alone(prompt, None) for prompt in (1, 2, 3)]
    else:
        assert isinstance(handles[2].error, RequestCancelled)
    with pytest.raises(RuntimeError, match="shutting down"):
        engine.submit(request(1))
    assert engine.target.cache.lanes == () and not engine.is_healthy


def test_a_loop_that_dies_takes_nobody_waiting_with_it(monkeypatch):
    engine = small_engine()
    handle = engine.submit(request(1))
    monkeypatch.setattr(engine.session, "step", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        engine.run_forever()
    with pytest.raises(KeyboardInterrupt):
        handle.result(timeout=1)
    assert engine.target.cache.lanes == ()


def test_a_result_that_is_not_there_yet():
    engine = small_engine()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"request 0 is still running after 0\.01 s"):
        engine.submit(request(1)).result(timeout=0.01)
    assert time.monotonic() - began < 5
