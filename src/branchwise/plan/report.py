"""Plans on paper: tables for people, records for programs, and what the model leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from .batches import USABLE, BatchPlan, Planner
from .fleet import FleetRun

#: what is not in the numbers; printed under every plan
LEFT_OUT = (
    "all lanes have one context and one drafter's acceptance, which does not change with load, model or temperature",
    "kernels reach a fixed share of the peaks at every size; tiles that are not full, caches and clocks are left out",
    "experts are taken evenly by chance; running them one after the other, as transformers may, costs more",
    "memory for activations and fragmentation is in the tenth of the device that is kept free, and nowhere else",
    "networks between machines, tokenizers, HTTP, failures and restarts are left out",
)
QUANTILES = (50, 95, 99)


def batch_lines(planner: Planner, plans: Sequence[BatchPlan], crossover: int | None) -> Iterator[str]:
    """A table of batch sizes, and what it means."""
    yield (
        f"{'batch':>6} {'budget':>6} {'tokens/step':>11} {'step ms':>8} {'draft':>7} {'forward':>8} {'host':>7} "
        f"{'tokens/s':>9} {'in all':>9} {'x plain':>7} {'GB':>7}  bound by"
    )
    for plan in plans:
        step = plan.step
        row = (
            f"{plan.batch:>6} {plan.budget:>6} {plan.tokens_per_step:>11.2f} {1000 * step.total:>8.2f} "
            f"{1000 * step.draft:>7.2f} {1000 * step.forward.total:>8.2f} {1000 * step.host:>7.2f} "
        )
        if not plan.fits:
            yield f"{row}{'does not fit':>28} {plan.memory_bytes / 1e9:>7.1f}"
            continue
        yield (
            f"{row}{plan.per_user:>9.1f} {plan.in_all:>9.0f} {plan.gain:>7.2f} {plan.memory_bytes / 1e9:>7.1f}  "
            f"{step.bound}"
        )
    yield ""
    yield "tokens/s is one user's; memory is one device's. " + _crossover(plans, crossover)
    yield _memory(planner)


def _crossover(plans: Sequence[BatchPlan], crossover: int | None) -> str:
    plain = [plan.batch for plan in plans if plan.budget == 1 and (crossover is None or plan.batch < crossover)]
    # few rows of a model with experts touch few of them: there every node brings its own
    not_at = f" They do not pay at {', '.join(map(str, plain))}." if plain else ""
    if crossover is None:
        return f"Trees still pay at {plans[-1].batch} lanes.{not_at}"
    if crossover == plans[0].batch:
        return f"Trees do not pay from {crossover} lanes on: plain decoding is best."
    return f"Trees pay below {crossover} lanes; from there on plain decoding is best.{not_at}"


def _memory(planner: Planner) -> str:
    most, target = planner.most_lanes(), planner.model.target
    weights, memory = target.weight_bytes / 1e9, USABLE * target.hardware.memory_bytes / 1e9
    if not most:
        return f"Weights take {weights:.1f} GB per device of {memory:.1f}: not one lane fits. Use more devices."
    return (
        f"Weights take {weights:.1f} of {memory:.1f} GB per device; keys and values of {planner.context} tokens "
        f"{target.lane_bytes(planner.context) / 1e6:.1f} MB per lane: at most {most} lanes fit."
    )


def batch_record(plans: Sequence[BatchPlan], crossover: int | None, most_lanes: int) -> dict[str, Any]:
    """The same for a file."""
    return {
        "batches": [
            {
                "batch": plan.batch,
                "budget": plan.budget,
                "tokens_per_step": plan.tokens_per_step,
                "step_seconds": plan.step.total,
                "draft_seconds": plan.step.draft,
                "forward_seconds": plan.step.forward.total,
                "host_seconds": plan.step.host,
                "plain_step_seconds": plan.plain.total,
                "tokens_per_second": plan.per_user,
                "tokens_per_second_in_all": plan.in_all,
                "gain": plan.gain,
                "bound": plan.step.bound,
                "memory_bytes": plan.memory_bytes,
                "fits": plan.fits,
            }
            for plan in plans
        ],
        "crossover": crossover,
        "most_lanes": most_lanes,
    }


def fleet_record(run: FleetRun, devices: int, price_per_hour: float | None) -> dict[str, Any]:
    """What a simulation came to.

    Args:
        run: the simulation.
        devices: of one replica.
        price_per_hour: of one device, or None.
    """
    tokens = sum(one.arrival.output_tokens for one in run.served)
    hours = run.ended_at * len(run.busy_seconds) * devices / 3600
    record = {
        "requests": len(run.served) + len(run.refused),
        "served": len(run.served),
        "refused": [{**asdict(arrival), "reason": reason} for arrival, reason in run.refused],
        "ended_at_seconds": run.ended_at,
        "output_tokens": tokens,
        "tokens_per_second": tokens / run.ended_at if run.ended_at else 0.0,
        "utilisation": [busy / run.ended_at for busy in run.busy_seconds] if run.ended_at else [],
        "first_token_seconds": quantiles([one.first_token_seconds for one in run.served]),
        "token_seconds": quantiles([one.token_seconds for one in run.served if one.token_seconds is not None]),
        "request_seconds": quantiles([one.seconds for one in run.served]),
        "preemptions": sum(one.preemptions for one in run.served),
        "steps": run.steps,
        "drafted_per_step": run.drafted / run.steps if run.steps else 0.0,
        "accepted_per_step": run.accepted / run.steps if run.steps else 0.0,
        "device_hours": hours,
    }
    if price_per_hour is not None:
        record["price_per_million_tokens"] = price_per_hour * hours / tokens * 1e6 if tokens else None
    return record


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """By name, straight lines between the values; empty without values."""
    if not values:
        return {}
    return {f"p{at}": float(np.percentile(values, at)) for at in QUANTILES}


def fleet_lines(record: dict[str, Any]) -> Iterator[str]:
    """What `fleet_record` holds, for people."""
    yield f"{record['served']} of {record['requests']} requests served in {record['ended_at_seconds']:.1f} s"
    if record["refused"]:
        yield f"refused: {len(record['refused'])}, the first because {record['refused'][0]['reason']}"
    yield f"{'':24} {'p50':>9} {'p95':>9} {'p99':>9}"
    for title, key, scale in (
        ("to the first token, s", "first_token_seconds", 1),
        ("per token after it, ms", "token_seconds", 1000),
        ("whole request, s", "request_seconds", 1),
    ):
        cells = (f"{scale * value:>9.3f}" for value in record[key].values())
        yield f"{title:24} {' '.join(cells)}"
    mean = sum(record["utilisation"]) / max(1, len(record["utilisation"]))
    yield f"{record['tokens_per_second']:.0f} tokens/s in all; replicas are busy {mean:.0%} of the time"
    yield (
        f"{record['steps']} steps, {record['drafted_per_step']:.1f} nodes drafted and "
        f"{record['accepted_per_step']:.1f} accepted per step; {record['preemptions']} times somebody had to make room"
    )
    price = record.get("price_per_million_tokens")
    if price is not None:
        yield f"{record['device_hours']:.2f} device hours, {price:.2f} per million output tokens"
