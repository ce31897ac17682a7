"""Forwards of the engines for CPUs: milliseconds by nodes and context, all engines in turns in one process.

    python bench/cpu_forward.py --threads 2
    python bench/cpu_forward.py --engines native:int4,openvino:int8 --nodes 1,16 --contexts 256 --json forwards.json

A tree of N nodes (three children each) behind a context of random tokens is scored and rolled back. Medians count; who
goes first changes every round. Ratios are to one node at the first context. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from branchwise import TokenTree
from branchwise.bench.provenance import model_facts, provenance
from branchwise.decode.attach import as_target
from branchwise.hub import load, resolve


def tree_of(nodes: int, tokens: list[int]) -> TokenTree:
    """Three children per node: the shape hardly matters, what costs is the number of nodes."""
    return TokenTree(tokens[:nodes], [-1, *((node - 1) // 3 for node in range(1, nodes))])


def milliseconds(targets: dict[str, Any], context: int, nodes: list[int], repeats: int) -> dict[str, dict[int, float]]:
    """Median of every engine and number of nodes at one context."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = min(target.vocab_size for target in targets.values())
    tokens = torch.randint(vocabulary, (context + max(nodes),), generator=generator).tolist()
    lanes = {name: target.open(context + max(nodes)) for name, target in targets.items()}
    for name, target in targets.items():
        target.prefill(lanes[name], tokens[: context + 1])
    found: dict[str, dict[int, float]] = {name: {} for name in targets}
    for count in nodes:
        tree, seconds = tree_of(count, tokens[context:]), {name: [] for name in targets}
        for turn in range(-2, repeats):  # two uncounted rounds
            for name in list(targets)[:: 1 if turn % 2 else -1]:
                began = time.perf_counter()
                targets[name].forward({lanes[name]: tree})
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - began)
                targets[name].rollback()
        for name in targets:
            found[name][count] = 1e3 * median(seconds[name])
    for name, target in targets.items():
        target.free(lanes[name])
    return found


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--engines", default="native:int4,native:int8,native:bf16,openvino:int8,openvino:bf16")
    parser.add_argument("--nodes", default="1,8,16,32")
    parser.add_argument("--contexts", default="256,4096")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="a file for the last line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    nodes, contexts = ([int(n) for n in given.split(",")] for given in (options.nodes, options.contexts))
    model, _ = load(options.model, dtype=torch.bfloat16)
    targets = {name: as_target(model, *name.split(":")) for name in options.engines.split(",")}
    record: dict[str, Any] = {"bench": "cpu forward", "nodes": nodes, "engines": {name: {} for name in targets}}
    first: dict[str, float] = {}
    for context in contexts:
        print(f"context {context}, ms (multiple of one node) for nodes of {', '.join(map(str, nodes))}")
        for name, times in milliseconds(targets, context, nodes, options.repeats).items():
            one = first.setdefault(name, times[nodes[0]])
            print(f"  {name:16}" + "".join(f"{times[n]:8.1f} ({times[n] / one:4.2f})" for n in nodes), flush=True)
            record["engines"][name][context] = {n: round(times[n], 3) for n in nodes}
    line = json.dumps(
        record | {"provenance": provenance(model=model_facts(options.model, resolve(options.model), model))}
    )
    if options.json is not None:
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
