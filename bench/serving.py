"""Many requests at once: the engine with trees against the same engine without, at several loads.

    plain   drafter "none", budget 1: one token per request and forward
    trees   drafter "auto", budget "auto": one node budget shared by all requests
    hf      with --generate-batch: transformers' continuous batching, model.generate_batch, without speculation, on a
            second copy of the model and with as many blocks as the engine's pool has rows

A run submits all its requests at once: `load` of them are served side by side (max_lanes), and others follow in their
places (`--per-lane`). Runs of both kinds alternate; each kind keeps its engine, and so its drafter and what its budget
has learned, over all repeats of a load. Every repeat takes the next prompts of the file, the same for all kinds: no
drafter meets a text that it has written before, unless the file is too short for that. Tokens per second are all new
tokens over the time from the first submission to the last token, prompts included; gaps are seconds between two runs of
tokens of one request; times to the first token count from submission. In float32 and float64 the texts must be equal
(exit code 1 if not); in bfloat16 near-ties may differ and are counted. The last line is one JSON object.

    python bench/serving.py --prompts prompts.jsonl                   # 4, 16 and 64 requests, default model
    python bench/serving.py --prompts prompts.jsonl --loads 4 --new 32 --repeats 1
    python bench/serving.py --prompts prompts.jsonl --generate-batch --plot serving.png
    python bench/serving.py --prompts prompts.jsonl --loads --long-prompt 8000   # only the gaps beside a long prompt

With --long-prompt a prompt of so many tokens arrives while three streams run; what counts is their longest gap from
then on, as a multiple of their median gap over the whole run (bar: 3; exit code 1 when missed).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from branchwise import Engine
from branchwise.bench.prompts import encode_prompt, read_prompts
from branchwise.bench.provenance import model_facts, provenance
from branchwise.decode.request import Request
from branchwise.decode.stopping import StopRules
from branchwise.hub import load, resolve
from branchwise.verify.law import Sampler

KINDS: dict[str, dict[str, Any]] = {"plain": {"drafter": "none", "budget": 1}, "trees": {}}


@dataclass(frozen=True)
class Run:
    """One batch of requests through one engine."""

    tokens: list[tuple[int, ...]]
    seconds: float
    gaps: list[float]
    first_token_seconds: list[float]

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all requests per second."""
        return sum(map(len, self.tokens)) / self.seconds


def run(engine: Engine, prompts: list[list[int]], new_tokens: int) -> Run:
    """Submits everything, then steps to the end."""
    times: list[list[float]] = [[] for _ in prompts]
    began = time.perf_counter()
    handles = []
    for prompt, seen in zip(prompts, times, strict=True):
        note = lambda _, seen=seen: seen.append(time.perf_counter())  # noqa: E731  # one line says it all
        handles.append(engine.submit(Request(tuple(prompt), Sampler(), StopRules(new_tokens), on_tokens=note)))
    while engine.step():
        pass
    seconds = time.perf_counter() - began
    gaps = [later - earlier for seen in times for earlier, later in itertools.pairwise(seen)]
    firsts = [seen[0] - began for seen in times]
    return Run([handle.result(timeout=0).tokens for handle in handles], seconds, gaps, firsts)


def run_transformers(model: Any, prompts: list[list[int]], load_: int, args: argparse.Namespace) -> float:
    """Tokens per second of ``generate_batch`` over the same requests."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation = GenerationConfig(
        max_new_tokens=args.new, do_sample=False, eos_token_id=model.generation_config.eos_token_id, pad_token_id=0
    )
    page = 256
    batching = ContinuousBatchingConfig(
        page_size=page, num_blocks=args.pool_tokens // page, max_batch_tokens=2048, max_requests_per_batch=load_
    )
    began = time.perf_counter()
    outputs = model.generate_batch(prompts, generation, batching)
    seconds = time.perf_counter() - began
    if len(outputs) < len(prompts):
        raise RuntimeError(f"generate_batch answered {len(outputs)} of {len(prompts)} requests")
    return sum(len(output.generated_tokens) for output in outputs.values()) / seconds


def measure(
    model: Any, peer: Any, tokenizer: Any, prompts: Iterator[list[int]], load_: int, args: argparse.Namespace
) -> dict[str, Any]:
    """All kinds at one load, in turns; every turn takes the next of the prompts."""
    engines = {
        kind: Engine(model, tokenizer, max_lanes=load_, pool_tokens=args.pool_tokens, prefix_bytes=0, **options)
        for kind, options in KINDS.items()
    }
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    of_peer = []
    requests = args.per_lane * load_
    for _ in range(args.repeats + 1):
        chosen = list(itertools.islice(prompts, requests))
        for kind, engine in engines.items():
            runs[kind].append(run(engine, chosen, args.new))
        if peer is not None:
            of_peer.append(run_transformers(peer, chosen, load_, args))
    result: dict[str, Any] = {"load": load_, "requests": requests}
    for kind, (_, *measured) in runs.items():  # the first run of each kind warms up
        counts = engines[kind].statistics
        gaps = [gap for one in measured for gap in one.gaps]
        result[kind] = {
            "tokens_per_second": median(one.tokens_per_second for one in measured),
            "median_gap_seconds": median(gaps) if gaps else None,
            "longest_gap_seconds": max(gaps, default=None),
            "median_first_token_seconds": median(s for one in measured for s in one.first_token_seconds),
            "steps": counts.steps,
            "drafted_per_step": counts.draft_tokens / counts.steps,
            "accepted_per_step": counts.accepted_tokens / counts.steps,
        }
    pairs = zip(runs["plain"], runs["trees"], strict=True)
    result["ratio"] = median(trees.tokens_per_second / plain.tokens_per_second for plain, trees in list(pairs)[1:])
    if of_peer:
        pairs = zip(of_peer, runs["trees"], strict=True)
        result["hf"] = {"tokens_per_second": median(of_peer[1:])}
        result["ratio_to_hf"] = median(trees.tokens_per_second / hf for hf, trees in list(pairs)[1:])
    plain, trees = runs["plain"][-1].tokens, runs["trees"][-1].tokens
    result["different_texts"] = sum(one != other for one, other in zip(plain, trees, strict=True))
    return result


def gaps_beside(model: Any, tokenizer: Any, prompts: list[list[int]], long_tokens: int, pool: int) -> dict[str, Any]:
    """Three streams run from before a long prompt arrives until after it is read; their gaps."""
    engine = Engine(model, tokenizer, max_lanes=4, pool_tokens=pool, prefix_bytes=0)
    times: list[list[float]] = [[] for _ in range(3)]
    streams = []
    for prompt, seen in zip(prompts, times, strict=False):
        note = lambda _, seen=seen: seen.append(time.perf_counter())  # noqa: E731  # one line says it all
        request = Request(tuple(prompt), Sampler(), StopRules(engine.most_new_tokens(len(prompt))), on_tokens=note)
        streams.append(engine.submit(request))
    for _ in range(40):
        engine.step()
    arrived = time.perf_counter()
    text = list(itertools.islice(itertools.cycle(itertools.chain(*prompts)), long_tokens))
    long = engine.submit(Request(tuple(text), Sampler(), StopRules(1)))
    while not long.is_done:
        engine.step()
    read = time.perf_counter()
    for _ in range(20):
        engine.step()
    engine.shutdown(drain=False)
    gaps = [(later - earlier, later) for seen in times for earlier, later in itertools.pairwise(seen)]
    middle = median(gap for gap, _ in gaps)
    longest = max((gap for gap, at in gaps if at >= arrived), default=0.0)
    return {
        "prompt_tokens": long_tokens,
        "read_seconds": read - arrived,
        "median_gap_seconds": middle,
        "longest_gap_seconds": longest,
        "longest_in_medians": longest / middle,
    }


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Tokens per second against requests at once, and the ratio: where it meets 1, trees stop paying."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    speed, ratio = figure.subplots(1, 2)
    loads = [result["load"] for result in results]
    for kind, name, mark, color in (
        ("trees", "trees", "o-", "#0072b2"),
        ("plain", "the same engine without trees", "s--", "#d55e00"),
        ("hf", "transformers, generate_batch", "^:", "#009e73"),
    ):
        if all(kind in result for result in results):
            speed.plot(loads, [result[kind]["tokens_per_second"] for result in results], mark, color=color, label=name)
    ratio.plot(loads, [result["ratio"] for result in results], "o-", color="#0072b2", label="trees / without trees")
    ratio.axhline(1, color="#555555", linewidth=0.8)
    for axes, label in ((speed, "tokens per second, all requests"), (ratio, "ratio of tokens per second")):
        axes.set(xscale="log", xlabel="requests at once", ylabel=label, xticks=loads, xticklabels=map(str, loads))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    """Measures every load; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="a file as `branchwise bench` takes it")
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float64"))
    parser.add_argument("--loads", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--long-prompt", type=int, metavar="TOKENS", help="also measure gaps beside such a prompt")
    parser.add_argument("--generate-batch", action="store_true", help="also measure transformers")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    parser.add_argument("--new", type=int, default=96, help="new tokens per request")
    parser.add_argument("--per-lane", type=int, default=2, metavar="N", help="requests of a run, per lane")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pool-tokens", type=int, default=2**17)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model, dtype=getattr(torch, args.dtype))
    peer = load(args.model, dtype=getattr(torch, args.dtype))[0] if args.generate_batch else None
    prompts = [encode_prompt(tokenizer, prompt.text) for prompt in read_prompts(args.prompts)]
    results = []
    for load_ in args.loads:
        results.append(measure(model, peer, tokenizer, itertools.cycle(prompts), load_, args))
        plain, trees = results[-1]["plain"], results[-1]["trees"]
        print(
            f"{load_:3} at once: plain {plain['tokens_per_second']:.1f} tokens/s, trees "
            f"{trees['tokens_per_second']:.1f}, ratio {results[-1]['ratio']:.2f}; different texts "
            f"{results[-1]['different_texts']} of {results[-1]['requests']}"
            + (f"; {results[-1]['ratio_to_hf']:.2f} times generate_batch" if peer is not None else ""),
            flush=True,
        )
    if args.plot is not None:
        plot(results, args.plot)
    facts = model_facts(args.model, resolve(args.model), model)
    beside = None
    if args.long_prompt is not None:
        beside = gaps_beside(model, tokenizer, prompts, args.long_prompt, args.pool_tokens)
        print(f"beside a prompt of {args.long_prompt} tokens: longest gap {beside['longest_in_medians']:.2f} medians")
    settings = {"beside_long_prompt": beside, "loads": results, "new_tokens": args.new, "dtype": args.dtype}
    print(json.dumps({**settings, "provenance": provenance(model=facts)}))
    if beside is not None and beside["longest_in_medians"] > 3:
        return 1
    failed = args.dtype != "bfloat16" and any(result["different_texts"] for result in results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
