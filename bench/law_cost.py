"""What laws and rule cost per step: sampled trees of 32 nodes over the model's whole vocabulary, real logits.

Drafts, committed tokens and logits are taken from a generation of the model; then every rule judges the same drafts,
laws made afresh each time (nothing is kept from rule to rule), the rules in turns. Three shapes, since rules differ in
what they take:

    tree      up to three children per node, drawn without replacement: match, multiround, rejection, traversal
    chain     one child per node: block, and the four above
    rollouts  four independent chains from the root: best_path

Printed are medians of the wall-clock milliseconds per step. The bars (tree shape): 4 ms with temperature alone, 10 ms
with top-p 0.9 added. The last line is one JSON object; exit code 1 when a bar is missed.

    python bench/law_cost.py
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import TemperatureLogitsWarper, TopPLogitsWarper

from branchwise import TokenTree
from branchwise.bench.prompts import encode_prompt
from branchwise.bench.provenance import model_facts, provenance
from branchwise.hub import load, resolve
from branchwise.target import HuggingFaceTarget
from branchwise.verify import RULES, DraftTree, LawMaker, Proposal, Sampled, Sampler, SeededCoins, sample_children

PROMPT = "Tell me a story about a lighthouse keeper who finds a message in a bottle."
SHAPES = {
    "tree": ("match", "multiround", "rejection", "traversal"),
    "chain": ("match", "multiround", "rejection", "traversal", "block"),
    "rollouts": ("best_path",),
}
LIMITS_MS = {"temperature 1": 4.0, "temperature 0.7, top-p 0.9": 10.0}
SAMPLERS = {
    "temperature 1": Sampler(True, LogitsProcessorList([TemperatureLogitsWarper(1.0)])),
    "temperature 0.7, top-p 0.9": Sampler(
        True, LogitsProcessorList([TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9)])
    ),
}


@dataclass(frozen=True)
class Case:
    """One step to judge: what a rule is given."""

    draft: DraftTree
    committed: tuple[int, ...]
    logits: Tensor  # [N, V]


def draw(law: Tensor, shape: str, root: int, nodes: int, coins: SeededCoins) -> DraftTree:
    """A draft of one shape, every child drawn from the softened law of the root: right often enough to go deep."""
    softened = law.double() ** 0.7
    vector = softened / softened.sum()
    width, replacement = {"tree": (3, False), "chain": (1, False), "rollouts": (4, True)}[shape]
    tokens, parents = [root], [-1]
    proposals: list[Proposal] = []
    node = 0
    while len(tokens) < nodes:
        wanted = width if shape == "tree" or node == 0 else 1
        children, proposal = sample_children(vector, min(wanted, nodes - len(tokens)), coins, replacement)
        for child in children:
            tokens.append(child)
            parents.append(node)
            proposals.append(Sampled(vector, replacement) if replacement else proposal)
        node += 1
    return DraftTree(TokenTree(tokens, parents), tuple(proposals))


def cases(target: HuggingFaceTarget, prompt: Sequence[int], shape: str, steps: int, nodes: int) -> list[Case]:
    """Steps of a run that emits one token at a time, each with a tree drawn around what the model thinks."""
    lane = target.open()
    target.prefill(lane, prompt)
    committed = list(prompt)
    coins = SeededCoins(0)
    made = []
    # best_path wants rollouts of one length
    nodes = 1 + 4 * ((nodes - 1) // 4) if shape == "rollouts" else nodes
    for _ in range(steps):
        law = torch.softmax(target.forward({lane: TokenTree([committed[-1]], [-1])})[lane].logits[0].float(), 0)
        target.rollback()
        draft = draw(law, shape, committed[-1], nodes, coins.at(len(committed)).drafting())
        logits = target.forward({lane: draft.tree})[lane].logits
        made.append(Case(draft, tuple(committed), logits.clone()))
        target.commit({lane: (0,)})
        committed.append(coins.at(len(committed)).choice(law))
    target.free(lane)
    return made


def measure(made: Sequence[Case], names: Sequence[str], sampler: Sampler, rounds: int) -> dict[str, float]:
    """Median milliseconds per step and rule."""
    rules = {name: RULES[name].make() for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for case in made:
            for name, rule in rules.items():
                maker = LawMaker(sampler)
                coins = SeededCoins(number, position=len(case.committed))
                began = time.perf_counter()
                rule.accept(case.draft, maker.laws(case.draft, case.committed, case.logits), coins)
                times[name].append(1000 * (time.perf_counter() - began))
    return {name: round(median(taken), 3) for name, taken in times.items()}


def main() -> int:
    """Measures and prints; 0 when the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=33, help="nodes of a tree, root included")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.model, dtype=getattr(torch, options.dtype))
    target = HuggingFaceTarget(model)
    prompt = encode_prompt(tokenizer, PROMPT)
    table: dict[str, dict[str, dict[str, float]]] = {}
    with torch.inference_mode():
        for shape, names in SHAPES.items():
            made = cases(target, prompt, shape, options.steps, options.nodes)
            for label, sampler in SAMPLERS.items():
                measure(made[:2], names, sampler, 1)  # warm up
                table.setdefault(label, {})[shape] = measure(made, names, sampler, options.rounds)
    missed = []
    for label, shapes in table.items():
        for shape, rows in shapes.items():
            for name, ms in rows.items():
                print(f"{label:28} {shape:9} {name:11} {ms:7.3f} ms per step")
                if shape == "tree" and ms > LIMITS_MS[label]:
                    missed.append(f"{label}, {name}: {ms} ms")
    result: dict[str, Any] = {
        "bench": "law_cost",
        "nodes": options.nodes,
        "vocab_size": target.vocab_size,
        "ms_per_step": table,
        "missed": missed,
        "provenance": provenance(model=model_facts(options.model, resolve(options.model), model)),
    }
    print(json.dumps(result))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
