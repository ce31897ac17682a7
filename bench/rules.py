"""Sampling on trees: what each rule keeps of the same sampled tree, and which way of drafting pays per second.

    tree    One run per prompt with sampled drafts and rule "traversal"; at every step "rejection" and "match" judge the
            very same draft with the same laws and coins of the same position, and what they would have kept is counted.
            All three write the target's law, so the contexts are fair to each.
    speed   Three runs per prompt in turns, prefill not counted: plain decoding, a deterministic tree with "match"
            (what drafter "mixed" does), a sampled tree with "traversal" (what drafter "sampled" does).
    exact   Rule "match" against plain decoding with the same seed: the tokens must be equal (float32 or float64).

Intervals are 95% bootstrap intervals over prompts. The last line is one JSON object. Exit code 1 when tokens per step
do not fall in the order traversal, rejection, match, or tokens differ in part exact.

    python bench/rules.py PROMPTS.jsonl --parts tree,speed --temperature 1
    python bench/rules.py PROMPTS.jsonl --parts tree,speed --temperature 0.7 --top-p 0.9
    python bench/rules.py PROMPTS.jsonl --parts exact --temperature 1 --dtype float32 --first 1 --max-new-tokens 2000
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from branchwise import Generation, Speculator
from branchwise.bench.agreement import first_difference
from branchwise.bench.prompts import choose_prompts, encode_prompt, read_prompts
from branchwise.bench.provenance import model_facts, provenance
from branchwise.bench.sampling import Sampling
from branchwise.draft import make_drafter
from branchwise.hub import load, resolve
from branchwise.target import HuggingFaceTarget
from branchwise.verify import DraftTree, Law, Match, Rejection, SeededCoins, Traversal, Verdict

RESAMPLES = 4000


@dataclass
class Panel:
    """Rule "traversal", with others looking over its shoulder.

    Attributes:
        kept: tokens per rule over all steps so far, bonus token included.
    """

    name: str = "panel of traversal"
    steps: int = 0
    kept: dict[str, int] = field(default_factory=dict)

    def accept(self, draft: DraftTree, law: Law, coins: SeededCoins) -> Verdict:
        """Traversal's verdict."""
        verdicts = {rule.name: rule.accept(draft, law, coins.at(coins.position)) for rule in RULES}
        self.steps += 1
        for name, verdict in verdicts.items():
            self.kept[name] = self.kept.get(name, 0) + len(verdict.path)
        return verdicts["traversal"]


RULES = (Traversal(), Rejection(), Match())


@dataclass(frozen=True)
class Ratio:
    """A ratio of totals over prompts."""

    tops: tuple[float, ...]
    bottoms: tuple[float, ...]

    def of(self, chosen: Sequence[int]) -> float:
        """Over a resample of the prompts."""
        return sum(self.tops[i] for i in chosen) / sum(self.bottoms[i] for i in chosen)

    def as_dict(self) -> dict[str, float]:
        """The ratio with its interval."""
        everything = range(len(self.tops))
        return {"value": round(self.of(everything), 3), **interval(self.of, len(self.tops))}


def interval(statistic: Callable[[Sequence[int]], float], prompts: int) -> dict[str, float]:
    """The middle 95% of a statistic over resampled prompts."""
    chance = random.Random(0)
    values = sorted(statistic(chance.choices(range(prompts), k=prompts)) for _ in range(RESAMPLES))
    return {"low": round(values[int(0.025 * RESAMPLES)], 3), "high": round(values[int(0.975 * RESAMPLES)], 3)}


def quotient(a: Ratio, b: Ratio) -> dict[str, float]:
    """One ratio over another, with an interval over the same resampled prompts."""
    prompts = len(a.tops)
    value = a.of(range(prompts)) / b.of(range(prompts))
    return {"value": round(value, 3), **interval(lambda chosen: a.of(chosen) / b.of(chosen), prompts)}


class Bench:
    """The model, the prompts and the settings."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self.options = options
        self.sampling = Sampling(options.temperature, top_p=options.top_p)
        loaded, self.tokenizer = load(options.model, dtype=getattr(torch, options.dtype))
        self.model: PreTrainedModel = loaded
        self.target = HuggingFaceTarget(loaded)
        chosen = choose_prompts(read_prompts(options.prompts), limit_per_category=options.limit)
        self.prompts = [encode_prompt(self.tokenizer, prompt.text) for prompt in chosen[: options.first]]

    def run(self, speculator: Speculator, index: int) -> Generation:
        """One prompt, with a seed of its own."""
        arguments = self.sampling.as_transformers() | {"max_new_tokens": self.options.max_new_tokens}
        if "exact" in self.options.parts:
            arguments |= {"min_new_tokens": self.options.max_new_tokens}
        return speculator.complete(self.prompts[index], seed=self.options.seed + index, **arguments)

    def speculator(self, drafter: str, rule: Any) -> Speculator:
        """A way to generate; its drafter learns from prompt to prompt."""
        budget = 1 if drafter == "none" else self.options.budget
        return Speculator(self.target, self.tokenizer, drafter=make_drafter(drafter), rule=rule, budget=budget)

    def tree(self) -> dict[str, Any]:
        """Part tree."""
        panels: list[Panel] = []
        speculator = self.speculator("sampled", None)
        for index in range(len(self.prompts)):
            panels.append(Panel())
            speculator.rule = panels[-1]
            self.run(speculator, index)
            print(f"tree {index + 1}/{len(self.prompts)}", file=sys.stderr, flush=True)
        steps = tuple(float(panel.steps) for panel in panels)
        kept = {rule.name: tuple(float(panel.kept[rule.name]) for panel in panels) for rule in RULES}
        result: dict[str, Any] = {"steps": int(sum(steps))}
        for name, tokens in kept.items():
            result[name] = Ratio(tokens, steps).as_dict()
        for better, worse in (("traversal", "rejection"), ("rejection", "match")):
            gained = tuple(a - b for a, b in zip(kept[better], kept[worse], strict=True))
            result[f"{better} - {worse}"] = Ratio(gained, steps).as_dict()
        return result

    def speed(self) -> dict[str, Any]:
        """Part speed."""
        ways = {
            "plain": self.speculator("none", "match"),
            "deterministic, match": self.speculator("mixed", "match"),
            "sampled, traversal": self.speculator("sampled", "traversal"),
        }
        runs: dict[str, list[Generation]] = {name: [] for name in ways}
        for name in ways:  # warm up
            self.run(ways[name], 0)
        for index in range(len(self.prompts)):
            order = list(ways)[index % 3 :] + list(ways)[: index % 3]
            for name in order:
                runs[name].append(self.run(ways[name], index))
            print(f"speed {index + 1}/{len(self.prompts)}", file=sys.stderr, flush=True)
        rates = {}
        for name, made in runs.items():
            tokens = tuple(float(len(run.tokens)) for run in made)
            seconds = tuple(run.decode_seconds for run in made)
            rates[name] = Ratio(tokens, seconds)
        result: dict[str, Any] = {}
        for name, made in runs.items():
            steps = tuple(float(run.steps) for run in made)
            forward = sum(step.forward for run in made for step in run.seconds)
            result[name] = {
                "tokens_per_step": Ratio(rates[name].tops, steps).as_dict(),
                "tokens_per_second": rates[name].as_dict(),
                "outside_forward": round(1 - forward / sum(run.decode_seconds for run in made), 3),
            }
        for name, other in (
            ("deterministic, match", "plain"),
            ("sampled, traversal", "plain"),
            ("sampled, traversal", "deterministic, match"),
        ):
            result[f"speed of ({name}) over ({other})"] = quotient(rates[name], rates[other])
        return result

    def exact(self) -> dict[str, Any]:
        """Part exact."""
        plain, drafts = self.speculator("none", "match"), self.speculator("mixed", "match")
        differ = []
        tokens = 0
        for index in range(len(self.prompts)):
            expected, got = self.run(plain, index), self.run(drafts, index)
            tokens += len(expected.tokens)
            place = first_difference(expected.tokens, got.tokens)
            if place is not None:
                differ.append({"prompt": index, "token": place})
            print(f"exact {index + 1}/{len(self.prompts)}: {place}", file=sys.stderr, flush=True)
        return {"tokens": tokens, "differences": differ}


def main() -> int:
    """Measures and prints; 0 when the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("--parts", default="tree,speed", type=lambda text: text.split(","))
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=None)
    parser.add_argument("--budget", type=int, default=17)
    parser.add_argument("--limit", type=int, default=4, help="prompts per category")
    parser.add_argument("--first", type=int, default=None, help="only so many prompts in all")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bench = Bench(options)
    parts = {part: getattr(bench, part)() for part in options.parts}
    met = True
    if "tree" in parts:
        means = [parts["tree"][rule.name]["value"] for rule in RULES]
        met = means == sorted(means, reverse=True)
    if "exact" in parts:
        met = met and not parts["exact"]["differences"]
    for part, figures in parts.items():
        for name, figure in figures.items():
            print(f"{part:6} {name:60} {figure}")
    result = {
        "bench": "rules",
        "prompts": len(bench.prompts),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "budget": options.budget,
        "max_new_tokens": options.max_new_tokens,
        **parts,
        "met": met,
        "provenance": provenance(model=model_facts(options.model, resolve(options.model), bench.model)),
    }
    print(json.dumps(result))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
