"""What tests of the engine share: prompts, their outputs alone, requests, and small engines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from branchwise.decode.engine import Engine
from branchwise.decode.handle import Handle
from branchwise.decode.request import Request
from branchwise.decode.stopping import StopRules
from branchwise.verify.law import Sampler
from oracles import greedy_by_recompute, sampled_by_recompute
from processors import processors_of
from zoo import tiny_llama

LONGEST = 24
SHARED = [(5 * i) % 31 + 1 for i in range(40)]
PROMPTS: tuple[tuple[int, ...], ...] = (
    (5,),
    (7, 3, 11),
    (7, 3, 11, 3, 7, 3, 11, 19, 23),
    tuple(range(1, 31)),
    (*SHARED, 9),
    (*SHARED, 4, 8),
    (*SHARED, 4, 8, 15, 16, 23),
)
SAMPLING = {"max_new_tokens": LONGEST, "do_sample": True, "temperature": 1.3, "top_k": 20, "repetition_penalty": 1.2}


@cache
def model() -> Any:
    return tiny_llama()


@cache
def alone(prompt: int, seed: int | None) -> tuple[int, ...]:
    """What a prompt gives by itself, one token at a time: greedy, or sampled with a seed."""
    tokens = list(PROMPTS[prompt])
    if seed is None:
        return tuple(greedy_by_recompute(model(), tokens, LONGEST))
    return tuple(sampled_by_recompute(model(), tokens, LONGEST, processors_of(model(), tokens, **SAMPLING), seed))


def request(prompt: int, new_tokens: int = LONGEST, seed: int | None = None, **options: Any) -> Request:
    """Greedy without a seed, sampled with one; only its length ends it."""
    tokens = PROMPTS[prompt]
    sampler = Sampler() if seed is None else Sampler(True, processors_of(model(), list(tokens), **SAMPLING))
    return Request(tokens, sampler, StopRules(new_tokens), seed, **options)


def small_engine(drafter: Any = "mixed", target: Any = None, **options: Any) -> Engine:
    return Engine(model() if target is None else target, drafter=drafter, **options)


def run(engine: Engine) -> None:
    """Steps until nothing is left, looking for leaks each time."""
    while engine.step():
        engine.check_integrity()
    engine.check_integrity()


def outputs(handles: Sequence[Handle]) -> list[tuple[int, ...]]:
    return [handle.result(timeout=0).tokens for handle in handles]
