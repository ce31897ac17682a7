"""Fleets: the real engine on a simulated clock. Nobody is lost, nobody waits for nothing, queues are as in theory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.decode.pacing import ChunkPacer
from branchwise.plan.acceptance import HostSeconds, from_chances, from_tokens_per_step
from branchwise.plan.fleet import FleetRun, FleetSettings, Replica, pool_tokens, simulate
from branchwise.plan.forward_cost import Lanes
from branchwise.plan.report import fleet_record, quantiles
from branchwise.plan.trace import Arrival, Lengths, parse_trace, poisson, read_trace
from plan_rig import HALVES, ONE_LAYER, SLOW, TICKING, steps

pytestmark = pytest.mark.core

PLAIN = FleetSettings(max_lanes=8, budget=1)
#: a forward takes a millisecond and a millisecond per row, attention next to nothing
HEAVY = replace(ONE_LAYER, matrix_parameters=1_000_000)
WORKING = replace(
    SLOW,
    memory_bytes=1e9,
    bytes_per_second=1e15,
    operations_per_second={"bfloat16": 2e9},
    kernel_seconds={"eager": 1e-3 / 68},
)


def waits(run: FleetRun) -> list[float]:
    return [one.first_token_seconds for one in run.served]


def test_alone_a_request_takes_what_its_forwards_take():
    """99 tokens are read at once, then five tokens one by one, each behind one more."""
    model = steps(hardware=SLOW, acceptance=HALVES)
    (one,) = simulate([Arrival(7.0, 100, 5)], model, PLAIN).served
    seconds = model.target.seconds
    reading = seconds([Lanes(99, 0)], with_logits=False).total
    tokens = [seconds([Lanes(1, 99 + before)]).total for before in range(5)]
    assert one.first_token_seconds == pytest.approx(reading + tokens[0])
    assert one.seconds == pytest.approx(reading + sum(tokens))
    assert one.token_seconds == pytest.approx(sum(tokens[1:]) / 4)


def test_a_queue_for_one_server_waits_as_long_as_theory_says():
    """M/D/1 at half load: a mean wait of rho / (2 (1 - rho)) = 0.5 services before the service itself."""
    arrivals = poisson(0.5, 5000, Lengths(1, 1, 0), seed=3)
    run = simulate(arrivals, steps(), FleetSettings(max_lanes=1, budget=1))
    mean = sum(waits(run)) / len(arrivals)
    assert mean == pytest.approx(1.5, abs=0.12)
    assert run.busy_seconds[0] == pytest.approx(len(arrivals))


def test_two_servers_wait_far_less_than_one_at_the_same_load_each():
    one = simulate(poisson(0.5, 1500, Lengths(1, 1, 0), seed=5), steps(), FleetSettings(1, 1, 1))
    two = simulate(poisson(1.0, 1500, Lengths(1, 1, 0), seed=5), steps(), FleetSettings(2, 1, 1))
    assert sum(waits(two)) / len(two.served) < sum(waits(one)) / len(one.served) - 0.1


requests = st.builds(Arrival, st.floats(0, 20), st.integers(1, 90), st.integers(1, 12))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(requests, min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([1, 5, "auto"]),
    st.integers(0, 3),
)
def test_every_arrival_is_served_exactly_once(arrivals, replicas, lanes, budget, seed):
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at)
    options = FleetSettings(replicas, lanes, budget, seed=seed)
    run = simulate(arrivals, steps(), options)
    assert sorted(id(one.arrival) for one in run.served) == sorted(map(id, arrivals))
    for one in run.served:
        assert one.arrival.at < one.first_token_at <= one.finished_at <= run.ended_at
    assert run.generated == sum(arrival.output_tokens for arrival in arrivals)
    assert all(busy <= run.ended_at + 1e-9 for busy in run.busy_seconds)
    assert simulate(arrivals, steps(), options) == run, "one seed, one run"


def test_what_stays_behind_in_a_replica_is_nothing():
    replica = Replica(0, steps(), FleetSettings())
    for length in (3, 40, 7):
        replica.submit(Arrival(0.0, length, 6))
    while replica.is_busy:
        replica.step()
        replica.engine.check_integrity()
    assert replica.load(replica.clock.now) == 0


@pytest.mark.parametrize("budget", [1, 5, 17])
def test_nodes_are_accepted_as_often_as_was_measured(budget):
    run = simulate([Arrival(0.0, 1, 3000)], steps(), FleetSettings(budget=budget))
    assert run.generated / run.steps == pytest.approx(HALVES.expected_tokens(budget), rel=0.04)


def test_the_shared_budget_follows_the_machine():
    """Where trees are free they are taken; where every node costs its arithmetic they are not."""
    arrivals = [Arrival(0.0, 1, 300)] * 8
    free = simulate(arrivals, steps(), FleetSettings(max_lanes=8))
    dear = simulate(arrivals, steps(HEAVY, WORKING), FleetSettings(max_lanes=8))
    assert free.drafted / free.steps > 60
    assert dear.drafted / dear.steps < 8
    plain = simulate(arrivals, steps(HEAVY, WORKING), FleetSettings(max_lanes=8, budget=1))
    assert free.ended_at < 0.7 * 300
    assert dear.ended_at < 1.1 * plain.ended_at


def test_prompts_are_read_in_the_engines_own_chunks(monkeypatch):
    """The control for 'the same code': with another pacer a running stream stalls behind a long prompt."""
    arrivals = [Arrival(0.0, 1, 400), Arrival(0.3, 3000, 2)]

    def slowest(run: FleetRun) -> float:
        return max(one.seconds for one in run.served if one.arrival.output_tokens == 400)

    def first(run: FleetRun) -> float:
        return next(one.first_token_seconds for one in run.served if one.arrival.output_tokens == 2)

    paced = simulate(arrivals, steps(HEAVY, WORKING), PLAIN)
    monkeypatch.setattr(ChunkPacer, "chunk", lambda self, running: 10_000)
    at_once = simulate(arrivals, steps(HEAVY, WORKING), PLAIN)
    assert first(at_once) < 0.9 * first(paced)
    assert slowest(paced) < slowest(at_once)


def test_an_arrival_goes_where_the_fewest_are():
    run = simulate([Arrival(0.0, 1, 9)] * 4, steps(), FleetSettings(replicas=4, budget=1))
    assert sorted(one.replica for one in run.served) == [0, 1, 2, 3]
    # the first is done after one second; until then the second replica is the emptier one
    later = [Arrival(0.0, 1, 1), Arrival(0.5, 1, 1), Arrival(1.2, 1, 1)]
    run = simulate(later, steps(), FleetSettings(replicas=2, budget=1))
    assert [one.replica for one in sorted(run.served, key=lambda one: one.arrival.at)] == [0, 1, 0]


def test_who_never_fits_is_refused_and_the_others_are_served():
    tight = steps(hardware=replace(TICKING, memory_bytes=10_000))
    run = simulate([Arrival(0.0, 5000, 5), Arrival(0.0, 10, 5)], tight, PLAIN)
    assert [one.arrival.prompt_tokens for one in run.served] == [10]
    assert run.refused[0][0].prompt_tokens == 5000 and "5000 prompt tokens" in run.refused[0][1]


def test_memory_pressure_makes_room_and_everybody_is_served():
    tight = steps(hardware=replace(TICKING, memory_bytes=(240 + 8 * 320 + 1) / 0.9))
    assert pool_tokens(tight) == 320
    run = simulate([Arrival(0.0, 60, 100)] * 3, tight, PLAIN)
    assert len(run.served) == 3 and sum(one.preemptions for one in run.served) > 0


def test_a_drafting_model_and_the_host_take_their_time():
    base = from_tokens_per_step("x", {5: 2.0})
    hosted = replace(base, host={1: HostSeconds(0.25, 0.5), 5: HostSeconds(0.25, 0.5)})
    arrivals, settings_ = [Arrival(0.0, 1, 40)], FleetSettings(budget=5)
    bare = simulate(arrivals, steps(acceptance=base), settings_)
    slower = simulate(arrivals, steps(acceptance=hosted), settings_)
    assert slower.steps == bare.steps
    assert slower.ended_at == pytest.approx(1.75 * bare.ended_at)
    drafted = simulate(arrivals, steps(acceptance=base, drafter=steps().target), settings_)
    assert drafted.steps == bare.steps and drafted.ended_at > 1.9 * bare.ended_at


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match="replicas must be >= 1, got 0"):
        FleetSettings(replicas=0)
    with pytest.raises(ValueError, match="auto or a number of nodes from 1 on, got 'many'"):
        FleetSettings(budget="many")
    with pytest.raises(ValueError, match="budgets up to 17, got 18"):
        simulate([], steps(), FleetSettings(budget=18))
    with pytest.raises(ValueError, match="leaves no room for keys and values"):
        simulate([], steps(hardware=replace(TICKING, memory_bytes=300)), FleetSettings())
    with pytest.raises(ValueError, match="max_lanes"):
        simulate([], steps(), FleetSettings(max_lanes=0))


# figures and traces


def test_figures_of_a_run():
    run = simulate([Arrival(0.0, 1, 2), Arrival(0.0, 1, 4)], steps(acceptance=from_chances("x", [[0.5]], 2)), PLAIN)
    record = fleet_record(run, devices=2, price_per_hour=9.0)
    assert record["output_tokens"] == 6 and record["ended_at_seconds"] == pytest.approx(4.0)
    assert record["tokens_per_second"] == pytest.approx(1.5)
    assert record["utilisation"] == pytest.approx([1.0])
    assert record["token_seconds"]["p50"] == pytest.approx(1.0)
    assert record["device_hours"] == pytest.approx(8 / 3600)
    assert record["price_per_million_tokens"] == pytest.approx(9 * 8 / 3600 / 6 * 1e6)
    assert quantiles([0.0, 10.0]) == pytest.approx({"p50": 5.0, "p95": 9.5, "p99": 9.9})
    json.dumps(record)


def test_arrivals_by_chance_have_their_rate_and_means():
    arrivals = poisson(20, 200, Lengths(300, 100, 0.5), seed=1)
    assert len(arrivals) == pytest.approx(4000, rel=0.06)
    assert sum(one.prompt_tokens for one in arrivals) / len(arrivals) == pytest.approx(300, rel=0.05)
    assert sum(one.output_tokens for one in arrivals) / len(arrivals) == pytest.approx(100, rel=0.05)
    assert arrivals == poisson(20, 200, Lengths(300, 100, 0.5), seed=1) != poisson(20, 200, Lengths(), seed=2)
    assert {one.prompt_tokens for one in poisson(1, 50, Lengths(7, 3, 0), 0)} == {7}


def test_a_trace_from_a_file(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [{"at": 2.5, "prompt_tokens": 3, "output_tokens": 4}, {"at": 1, "prompt_tokens": 1, "output_tokens": 1}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    assert read_trace(path) == [Arrival(1, 1, 1), Arrival(2.5, 3, 4)]
    assert parse_trace(str(path), 2.0, Lengths(), 0) == [Arrival(1, 1, 1)]
    with pytest.raises(ValueError, match=r"holds no arrivals before 0\.5 s"):
        read_trace(path, 0.5)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is no JSON object"),
        ("[1]", "line 1 must be a JSON object, got list"),
        ('{"at": -1, "prompt_tokens": 1, "output_tokens": 1}', "line 1: at must be a number >= 0, got -1"),
        ('{"at": 1, "prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens must be a number >= 1, got 0"),
        ('{"at": 1, "prompt_tokens": 1.5, "output_tokens": 1}', "prompt_tokens must be a whole number"),
        ('{"at": 1, "prompt_tokens": 1}', "line 1 has no 'output_tokens'"),
        ('{"at": 1, "prompt_tokens": 1, "output_tokens": 1, "user": 3}', "nobody reads: user"),
        ("", "holds no arrivals"),
    ],
)
def test_what_is_wrong_with_a_trace_is_named(tmp_path, line, said):
    path = tmp_path / "trace.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_trace(path)


@pytest.mark.parametrize(
    ("trace", "duration", "said"),
    [
        ("poisson:fast", 1.0, r"poisson:RATE \(requests per second\) or a file, got 'poisson:fast'"),
        ("poisson:2", None, "needs --duration"),
        ("poisson:-2", 1.0, "rate and duration must be numbers above 0, got -2.0"),
        ("poisson:1e-9", 1.0, "nobody comes in 1.0 s"),
        ("somewhere", 1.0, "somewhere cannot be read as a trace"),
    ],
)
def test_traces_that_are_none(trace, duration, said):
    with pytest.raises(ValueError, match=said):
        parse_trace(trace, duration, Lengths(), 0)


def test_lengths_out_of_range():
    with pytest.raises(ValueError, match="prompt_tokens must be >= 1, got 0"):
        Lengths(0)
    with pytest.raises(ValueError, match="from 0 to 2, got 3"):
        Lengths(spread=3)
