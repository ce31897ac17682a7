"""What a model is asked in one process and in two, to compare the answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TemperatureLogitsWarper

from branchwise import Engine
from branchwise.decode.request import Request
from branchwise.decode.stopping import StopRules
from branchwise.verify.law import Sampler
from tiny_folder import character_tokenizer
from zoo import SUPPORTED, build

LONGEST = 10
#: long enough for their beginning to be kept and copied
SHARED = [(5 * i) % 31 + 1 for i in range(40)]
PROMPTS = ((5,), (7, 3, 11, 3, 7, 3, 11, 19, 23), (*SHARED, 9), (*SHARED, 4, 8), tuple(range(1, 31)))


def save_family(name: str, parent: Path) -> Path:
    """A tiny model of the zoo as a folder."""
    family = next(family for family in SUPPORTED if family.name == name)
    folder = parent / name
    # transformers 5.10 splits only what divides
    build(family, vocab_size=64).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def speculator_outputs(make: Callable[..., Any]) -> dict[str, object]:
    """Plain, with trees, and sampled."""
    ids = torch.tensor([PROMPTS[1]])
    found: dict[str, object] = {}
    for name, drafter, budget in (("plain", "none", 1), ("trees", "mixed", 12)):
        speculator = make(drafter=drafter, budget=budget)
        found[name] = speculator.generate(ids, max_new_tokens=LONGEST, do_sample=False)[0].tolist()
        sampled = speculator.generate(ids, max_new_tokens=LONGEST, do_sample=True, temperature=1.3, seed=3)
        found[f"{name} sampled"] = sampled[0].tolist()
    return found


def engine_outputs(engine: Engine) -> list[list[int]]:
    """Many requests, greedy and sampled; a later one finds the beginning of its prompt read."""
    handles = []
    for number, prompt in enumerate(PROMPTS):
        for seed in (None, number):
            sampler = Sampler() if seed is None else Sampler(True, [TemperatureLogitsWarper(1.3)])
            handles.append(engine.submit(Request(prompt, sampler, StopRules(LONGEST), seed)))
    while engine.step():
        engine.check_integrity()
    return [list(handle.result(timeout=0).tokens) for handle in handles]
