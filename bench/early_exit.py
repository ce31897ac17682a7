"""Self-speculation with the first E layers: what reusing their work in verification is worth.

    plain         drafter "none": one token per forward
    reuse-E       the first E layers draft a tree; verification goes on from their keys, values and hidden states
    recompute-E   the same trees; verification runs all layers

All methods alternate prompt by prompt in one process; prefill is not counted. In float32 all three write the same
tokens; in bfloat16 near-ties may fall either way. reuse and recompute draft the same trees, so their ratio is the gain
of reuse alone, however good or bad the layers are at drafting: the early layers of a model that was not trained for it
are bad. The last line is one JSON object; exit code 1 when a method failed, or tokens differ in float32.

    python bench/early_exit.py                               # default model, bfloat16, E = 4, 8, 12
    python bench/early_exit.py --exits 10 20 --depth 4 --dtype float32
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from branchwise.bench.methods import BranchwiseMethod, Method
from branchwise.bench.prompts import Prompt, encode_prompt
from branchwise.bench.provenance import model_facts, provenance
from branchwise.bench.runner import Results, Row, rate, run_methods
from branchwise.bench.sampling import Sampling
from branchwise.draft import EarlyExitDrafter, NoneDrafter
from branchwise.hub import load, resolve
from branchwise.target import HuggingFaceTarget

QUESTIONS = (
    "Explain in five short steps how to bake bread, then repeat the steps as a numbered list.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "What is the difference between weather and climate?",
    "Summarise: The Nile flows north through eleven countries. It has two tributaries, the White Nile and the Blue "
    "Nile, which meet at Khartoum.",
)
WARM_UP = "Name three things that float on water."


def makers(target: HuggingFaceTarget, options: argparse.Namespace) -> dict[str, Callable[[], Method]]:
    """All methods by name, not made yet."""
    sampling = Sampling()

    def early(name: str, exit_layer: int, mode: str) -> Method:
        drafter = EarlyExitDrafter(target, exit_layer=exit_layer, mode=mode, depth=options.depth, width=options.width)
        return BranchwiseMethod(name, target, sampling, drafter, options.budget)

    found: dict[str, Callable[[], Method]] = {
        "plain": partial(BranchwiseMethod, "plain", target, sampling, NoneDrafter(), 1)
    }
    for exit_layer in options.exits:
        for mode in ("reuse", "recompute"):
            name = f"{mode}-{exit_layer}"
            found[name] = partial(early, name, exit_layer, mode)
    return found


def figures(rows: list[Row], plain: dict[str, Row]) -> dict[str, Any]:
    """One method's figures; ratios are medians over prompts."""
    steps = [step for row in rows for step in row.run.decode_steps]
    ratios = []
    for row in rows:
        base = plain[row.prompt.question_id].run.timing
        own = row.run.timing
        if base.decode_seconds and own.decode_seconds:
            ratios.append(rate(own.decode_tokens, own.decode_seconds) / rate(base.decode_tokens, base.decode_seconds))
    tokens = sum(len(row.run.tokens) for row in rows)
    timings = [row.run.timing for row in rows]
    return {
        "tokens_per_step": round(tokens / sum(timing.runs for timing in timings), 3),
        "tokens_per_second": round(
            rate(sum(t.decode_tokens for t in timings), sum(t.decode_seconds for t in timings)), 2
        ),
        "draft_ms_per_step": round(1000 * sum(step.draft for step in steps) / max(1, len(steps)), 2),
        "forward_ms_per_step": round(1000 * sum(step.forward for step in steps) / max(1, len(steps)), 2),
        "median_ratio_to_plain": round(median(ratios), 4) if ratios else None,
        "prompts_that_differ": [
            row.prompt.question_id for row in rows if row.run.tokens != plain[row.prompt.question_id].run.tokens
        ],
    }


def summarise(results: Results) -> dict[str, dict[str, Any]]:
    """Figures by method, for those that did not fail."""
    plain = {row.prompt.question_id: row for row in results.of("plain")}
    found = {name: figures(results.of(name), plain) for name in results.methods if name not in results.errors}
    for name, own in found.items():
        other = found.get(name.replace("reuse", "recompute"))
        if name.startswith("reuse") and other is not None and other["tokens_per_second"]:
            own["ratio_to_recompute"] = round(own["tokens_per_second"] / other["tokens_per_second"], 4)
    return found


def print_table(found: dict[str, dict[str, Any]]) -> None:
    """One line per method."""
    print(f"{'method':14} tokens/step  tokens/s  draft ms  forward ms  x plain  x recompute  differ")
    for name, row in found.items():
        ratio, gain = row["median_ratio_to_plain"], row.get("ratio_to_recompute")
        print(
            f"{name:14} {row['tokens_per_step']:11.2f} {row['tokens_per_second']:9.2f} {row['draft_ms_per_step']:9.2f} "
            f"{row['forward_ms_per_step']:11.2f} {ratio if ratio is not None else '-':>8} "
            f"{gain if gain is not None else '-':>12} {len(row['prompts_that_differ']):7}"
        )


def main() -> int:
    """Measures and prints; 0 when nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exits", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--budget", type=int, default=9)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--limit", type=int, default=len(QUESTIONS), help="prompts")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.model, dtype=getattr(torch, options.dtype))
    target = HuggingFaceTarget(model)
    prompts = [
        (Prompt(str(number), "early_exit", "early_exit", text), encode_prompt(tokenizer, text))
        for number, text in enumerate(QUESTIONS[: options.limit])
    ]
    results = run_methods(
        makers(target, options),
        prompts,
        warm_up=encode_prompt(tokenizer, WARM_UP),
        max_new_tokens=options.max_new_tokens,
        progress=lambda line: print(line, file=sys.stderr),
    )
    if "plain" in results.errors:
        print(results.errors["plain"])
        return 1
    found = summarise(results)
    print_table(found)
    differ = options.dtype == "float32" and any(row["prompts_that_differ"] for row in found.values())
    record = {
        "bench": "early_exit",
        "depth": options.depth,
        "width": options.width,
        "budget": options.budget,
        "max_new_tokens": options.max_new_tokens,
        "prompts": len(prompts),
        "methods": found,
        "errors": results.errors,
        "met": not results.errors and not differ,
        "provenance": provenance(model=model_facts(options.model, resolve(options.model), model)),
    }
    for name, error in results.errors.items():
        print(f"{name} FAILED: {error}")
    print(json.dumps(record))
    return 0 if record["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
