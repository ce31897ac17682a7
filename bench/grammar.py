"""JSON under a schema: with drafts against plain constrained decoding, twenty prompts, temperature 0.

    plain   drafter "none": one token per forward, the grammar masks the logits
    drafts  drafter "auto": the same grammar also prunes and extends the drafted trees

Both run in this library, prompt by prompt in turns. One drafter and one budget serve all prompts, as in a program that
keeps its Speculator; with --fresh every prompt starts with new ones. Prefill and compiling the schema (the same for
both) are not counted, except in cpu_speed_up, the ratio of processor seconds, which a busy machine disturbs least.
Every output is parsed and checked against its schema by a validator of its own, written out below. In float32 the
tokens must be equal; in bfloat16 a forward over many nodes rounds differently, so there near-ties
only validity is asked for. The last line is one JSON object; exit code 1 when an output is not valid, tokens differ in
float32, or drafts are not faster.

    python bench/grammar.py                        # default model, float32
    python bench/grammar.py --dtype bfloat16 --limit 5
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from branchwise import Generation, Grammar, Speculator
from branchwise.bench.agreement import first_difference
from branchwise.bench.prompts import encode_prompt
from branchwise.bench.provenance import model_facts, provenance
from branchwise.hub import load, resolve
from branchwise.target import HuggingFaceTarget


def text(most: int = 24, **more: Any) -> dict[str, Any]:
    """A string that cannot go on for ever."""
    return {"type": "string", "minLength": 1, "maxLength": most, **more}


def number(low: int, high: int) -> dict[str, Any]:
    """A whole number."""
    return {"type": "integer", "minimum": low, "maximum": high}


def one_of(*values: Any) -> dict[str, Any]:
    """One of a few values."""
    return {"enum": list(values)}


def array(items: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """A list."""
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def record(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object with all of these and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


BOOLEAN = {"type": "boolean"}
DATE = {"type": "string", "pattern": "^(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9])$"}

#: what is asked for, and the shape of the answer
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Describe a made-up person.", record(name=text(), age=number(0, 120), city=text(), married=BOOLEAN)),
    (
        "Give the weather forecast for tomorrow in Oslo.",
        record(city=text(), sky=one_of("sunny", "cloudy", "rainy"), low=number(-40, 40), high=number(-40, 45)),
    ),
    (
        "Write down a simple recipe for pancakes.",
        record(
            title=text(), ingredients=array(record(name=text(16), grams=number(1, 999)), 2, 4), minutes=number(1, 90)
        ),
    ),
    (
        "List three books by Jane Austen with the year of publication.",
        record(author=text(), books=array(record(title=text(32), year=number(1700, 1900)), 3, 3)),
    ),
    (
        "Classify the mood of this review: 'The film was slow, but I liked the ending.'",
        record(mood=one_of("positive", "mixed", "negative"), confidence=number(0, 100), reason=text(60)),
    ),
    (
        "Turn this into a calendar entry: meet Bob for lunch on 14 March 2024 at noon.",
        record(title=text(), date=DATE, hour=number(0, 23), guests=array(text(12), 1, 2)),
    ),
    (
        "Describe a red sports car for a shop.",
        record(
            make=text(16), model=text(16), colour=one_of("red", "green"), doors=one_of(2, 4), price=number(1, 99999)
        ),
    ),
    (
        "Extract the people and places: 'Anna flew from Paris to Rome to see Marco.'",
        record(people=array(text(12), 1, 3), places=array(text(12), 1, 3)),
    ),
    (
        "Make a configuration for a small web server.",
        record(
            host=text(16),
            port=number(1, 65535),
            tls=BOOLEAN,
            workers=number(1, 16),
            log_level=one_of("debug", "info", "error"),
        ),
    ),
    (
        "Write a bug report about a crash on start.",
        record(
            title=text(40),
            severity=one_of("low", "medium", "high"),
            steps=array(text(40), 1, 3),
            reproducible=BOOLEAN,
        ),
    ),
    (
        "Give the capital and population (in millions) of France, Spain and Italy.",
        array(record(country=text(12), capital=text(12), millions=number(1, 99)), 3, 3),
    ),
    (
        "Plan a three-day trip to Kyoto.",
        record(city=text(12), days=array(record(day=number(1, 3), morning=text(16), evening=text(16)), 3, 3)),
    ),
    (
        "Write a multiple-choice question about the solar system.",
        record(question=text(60), choices=array(text(16), 4, 4), answer=number(0, 3)),
    ),
    ("Describe the chess opening move e4.", record(move=one_of("e4", "d4", "c4"), name=text(32), popular=BOOLEAN)),
    (
        "Make an invoice for two items.",
        record(
            number=number(1, 9999),
            items=array(record(item=text(16), count=number(1, 9), cents=number(1, 99999)), 2, 2),
            paid=BOOLEAN,
        ),
    ),
    (
        "Describe a dog for an animal shelter.",
        record(
            name=text(12),
            breed=text(20),
            age_years=number(0, 20),
            vaccinated=BOOLEAN,
            good_with=array(one_of("children", "cats", "dogs"), 1, 3),
        ),
    ),
    (
        "Write a function signature for adding two numbers.",
        record(
            name=text(16),
            parameters=array(record(name=text(8), type=one_of("int", "float", "str")), 2, 2),
            returns=one_of("int", "float", "str"),
        ),
    ),
    (
        "Name three planets with their number of moons.",
        array(record(planet=text(10), moons=number(0, 150), has_rings=BOOLEAN), 3, 3),
    ),
    (
        "Make a profile for a music app.",
        record(
            user=text(12),
            favourite=record(genre=one_of("rock", "jazz", "classical"), artist=text(20)),
            volume=number(0, 11),
        ),
    ),
    (
        "Grade this answer: 'Water boils at 100 degrees Celsius at sea level.'",
        record(correct=BOOLEAN, points=number(0, 10), comment=text(60)),
    ),
)


def fault(value: Any, schema: dict[str, Any], place: str = "$") -> str | None:
    """Where and why ``value`` is not valid, or None; knows only what the schemas above use."""
    if "enum" in schema:
        return None if value in schema["enum"] and type(value) in map(type, schema["enum"]) else f"{place}: {value!r}"
    kind = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}[schema["type"]]
    if type(value) is not kind:
        return f"{place}: {value!r} is no {schema['type']}"
    if kind is int and not schema["minimum"] <= value <= schema["maximum"]:
        return f"{place}: {value} is out of range"
    if kind is str and "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{place}: {value!r} does not match"
    if kind is str and "pattern" not in schema and not schema["minLength"] <= len(value) <= schema["maxLength"]:
        return f"{place}: {len(value)} characters"
    inside: list[tuple[Any, dict[str, Any], str]] = []
    if kind is list:
        if not schema["minItems"] <= len(value) <= schema["maxItems"]:
            return f"{place}: {len(value)} items"
        inside = [(item, schema["items"], f"{place}[{index}]") for index, item in enumerate(value)]
    if kind is dict:
        if set(value) != set(schema["required"]):
            return f"{place}: keys {sorted(value)}"
        inside = [(value[key], schema["properties"][key], f"{place}.{key}") for key in value]
    return next((found for found in (fault(*entry) for entry in inside) if found), None)


@dataclass
class Tally:
    """Sums over runs of one method."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, run: Generation, cpu_seconds: float) -> None:
        """Takes one run in."""
        self.cpu_seconds += cpu_seconds
        self.tokens += len(run.tokens)
        self.steps += run.steps
        self.seconds += run.decode_seconds

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {
            "tokens": self.tokens,
            "tokens_per_step": round(self.tokens / self.steps, 3),
            "tokens_per_second": round(self.tokens / self.seconds, 2),
            "cpu_seconds": round(self.cpu_seconds, 1),
        }


def check(run: Generation, schema: dict[str, Any]) -> str | None:
    """Why an output is not valid, or None."""
    if run.finish_reason != "stop":
        return f"ended by {run.stop_cause}"
    try:
        return fault(json.loads(run.text or ""), schema)
    except json.JSONDecodeError as error:
        return str(error)


def main() -> int:
    """Measures and prints; 0 when the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", default="auto")
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--limit", type=int, default=len(CASES))
    parser.add_argument("--fresh", action="store_true", help="new drafter and budget for every prompt")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.model, dtype=getattr(torch, options.dtype))
    target = HuggingFaceTarget(model)
    tallies = {"plain": Tally(), "drafts": Tally()}
    faults: list[str] = []
    differ: list[int] = []
    speed_ups: list[float] = []
    sources: dict[str, list[int]] = {}
    compile_seconds: list[float] = []

    def speculator(kind: str) -> Speculator:
        drafter, budget = ("none", 1) if kind == "plain" else (options.drafter, options.budget)
        return Speculator(target, tokenizer, drafter=drafter, budget=budget)

    kept = {kind: speculator(kind) for kind in tallies}

    for index, (question, schema) in enumerate(CASES[: options.limit]):
        began = time.perf_counter()
        grammar = Grammar.from_json_schema(schema)
        grammar.compile(tokenizer, target.vocab_size)
        compile_seconds.append(time.perf_counter() - began)
        prompt = encode_prompt(tokenizer, f"{question} Answer in JSON.")
        kinds = ("plain", "drafts") if index % 2 else ("drafts", "plain")
        if not index:
            for kind in kinds:  # warm up
                speculator(kind).complete(prompt, grammar=grammar, max_new_tokens=8, do_sample=False)
        runs = {}
        for kind in kinds:
            runner = speculator(kind) if options.fresh else kept[kind]
            settings = {"max_new_tokens": options.max_new_tokens, "do_sample": False}
            cpu_began = time.process_time()
            runs[kind] = runner.complete(prompt, grammar=grammar, **settings)
            tallies[kind].add(runs[kind], time.process_time() - cpu_began)
        for kind, made in runs.items():
            why = check(made, schema)
            if why is not None:
                faults.append(f"prompt {index}, {kind}: {why}")
        for step in runs["drafts"].records:
            path = set(step.verdict.path)
            for node, source in enumerate(step.draft.sources, start=1):
                counts = sources.setdefault(source, [0, 0])
                counts[0] += 1
                counts[1] += node in path
        if first_difference(runs["plain"].tokens, runs["drafts"].tokens) is not None:
            differ.append(index)
        speed_ups.append(runs["plain"].decode_seconds / runs["drafts"].decode_seconds)
        print(f"{index:2} {speed_ups[-1]:5.2f}x {runs['drafts'].tokens_per_step:5.2f} per step  {runs['drafts'].text}")

    rates = {kind: tally.as_dict() for kind, tally in tallies.items()}
    ratio = rates["drafts"]["tokens_per_second"] / rates["plain"]["tokens_per_second"]
    same_enough = not differ or options.dtype == "bfloat16"
    met = not faults and same_enough and ratio > 1
    for line in faults:
        print("INVALID", line)
    result = {
        "bench": "grammar",
        "prompts": len(speed_ups),
        **rates,
        "speed_up": round(ratio, 3),
        "cpu_speed_up": round(rates["plain"]["cpu_seconds"] / rates["drafts"]["cpu_seconds"], 3),
        "speed_up_median": round(median(speed_ups), 3),
        "speed_up_least": round(min(speed_ups), 3),
        "invalid": faults,
        "prompts_that_differ": differ,
        "drafted_and_kept_by_source": sources,
        "compile_ms_median": round(1000 * median(compile_seconds), 1),
        "drafter": options.drafter,
        "fresh": options.fresh,
        "budget": options.budget,
        "met": met,
        "provenance": provenance(model=model_facts(options.model, resolve(options.model), model)),
    }
    print(
        f"{len(speed_ups)} prompts: {len(faults)} invalid outputs, {len(differ)} differ, drafts {ratio:.2f}x plain "
        f"({rates['drafts']['tokens_per_second']} against {rates['plain']['tokens_per_second']} tokens/s)"
    )
    print(json.dumps(result))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
