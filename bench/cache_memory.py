"""What the cache holds and what it costs.

1. Thousands of steps of an always-wrong drafter on a tiny model: after every step the rows in use must equal the
   committed tokens; resident memory is recorded beside the cache's bytes, and must not outgrow it.
2. One lane of 2,048 tokens and more in the default model's shapes: peak bytes (a layer that grows holds one old buffer
   beside the new one for a moment) over the bytes of the committed rows plus one budget of nodes.

The last line is one JSON object; exit code 1 when a bar is missed.

    python bench/cache_memory.py                 # 5,000 steps, peak <= 1.3x
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from branchwise.bench.provenance import provenance
from branchwise.cache import TreeCache
from branchwise.decode.request import Request
from branchwise.decode.session import Session
from branchwise.decode.stopping import StopRules
from branchwise.draft import AdversaryDrafter, NoneDrafter
from branchwise.target import HuggingFaceTarget
from branchwise.tune.budget import FixedBudget
from branchwise.verify import Greedy
from branchwise.verify.law import Sampler

#: layers, key/value heads and head width of SmolLM2-135M
DEFAULT_SHAPES = (30, 3, 64)
#: bytes per step that may be kept beside the cache: the tree, the verdict and the seconds of each step, for statistics
RECORD_BYTES_PER_STEP = 16_384


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096


def adversary_steps(steps: int, budget: int) -> dict[str, Any]:
    """Runs the steps; returns a sample of (step, committed, cache bytes, resident bytes) and the worst mismatch."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * steps + 64,
    )
    target = HuggingFaceTarget(LlamaForCausalLM(config).eval())
    request = Request(prompt=(1, 2, 3), sampler=Sampler(), stop=StopRules(max_new_tokens=steps + 1))
    plain = Session(target, NoneDrafter(), FixedBudget(1))
    text = plain.add(request, Greedy())
    while plain.active:
        plain.step()
    # knowing the output, the adversary can be wrong at every step
    right = [*request.prompt, *text.generated]
    session = Session(target, AdversaryDrafter(avoid=lambda tokens: right[len(tokens) :][:1]), FixedBudget(budget))
    lane = session.add(request, Greedy())
    sample, mismatches, accepted = [], 0, 0
    for step in range(1, steps + 1):
        session.step()
        committed = lane.position - 1  # the root's row is not in the cache yet
        accepted += len(lane.records[-1].verdict.path) - 1
        mismatches += any(layer.kept[0] != committed or layer.in_flight for layer in target.cache.layers)
        if step % max(1, steps // 20) == 0:
            gc.collect()
            sample.append((step, committed, target.cache.nbytes, resident_bytes()))
    target.cache.check_integrity()
    session.close()
    half = len(sample) // 2
    (first, _, cache_then, resident_then), (last, _, cache_now, resident_now) = sample[half], sample[-1]
    beside = (resident_now - resident_then) - (cache_now - cache_then)
    return {
        "steps": steps,
        "budget": budget,
        "accepted_drafts": accepted,
        "steps_with_other_rows": mismatches,
        "bytes_beside_cache_per_step": round(beside / max(1, last - first)),
        "rows": [dict(zip(("step", "committed", "cache_bytes", "resident_bytes"), row, strict=True)) for row in sample],
    }


def peak_of_one_lane(budget: int, tokens: int = 8000, prompt: int = 64, per_step: int = 3) -> dict[str, Any]:
    """Feeds a cache step by step in the default model's shapes; returns the worst peak at 2,048 tokens and more."""
    layers, heads, width = DEFAULT_SHAPES
    cache = TreeCache([None] * layers)
    lane = cache.open(prompt + budget)
    dtype = torch.bfloat16
    bytes_per_row = layers * heads * width * 2 * dtype.itemsize
    worst, worst_steady, growths = 0.0, 0.0, []
    fed = 0
    while fed < tokens:
        nodes = prompt if fed == 0 else budget
        rows = torch.zeros(1, heads, nodes, width, dtype=dtype)
        before = cache.nbytes
        cache.begin(range(1))
        peak = 0
        for index, layer in enumerate(cache.layers):
            old = layer.nbytes
            cache.update(rows, rows, index)
            # keys grow first, then values: at worst one new pair but for the old values still there
            peak = max(peak, cache.nbytes + (old // 2 if layer.nbytes > old else 0))
        cache.commit({lane: range(nodes if fed == 0 else per_step)})
        fed = cache.length(lane)
        if before and cache.nbytes > before:
            growths.append(round(cache.nbytes / before, 4))
        if fed >= 2048:
            line = (fed + budget) * bytes_per_row
            worst, worst_steady = max(worst, peak / line), max(worst_steady, cache.nbytes / line)
    return {
        "tokens": fed,
        "budget": budget,
        "peak_ratio": round(worst, 4),
        "steady_ratio": round(worst_steady, 4),
        "growth_steps": growths,
    }


def main() -> int:
    """Measures and prints; 0 when the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--budget", type=int, default=17)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bar", type=float, default=1.3, help="greatest peak / (committed rows + budget)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steps = adversary_steps(options.steps, options.budget)
    peak = peak_of_one_lane(options.budget)
    met = (
        steps["steps_with_other_rows"] == 0
        and steps["accepted_drafts"] == 0
        and steps["bytes_beside_cache_per_step"] <= RECORD_BYTES_PER_STEP
        and peak["peak_ratio"] <= options.bar
    )
    record = {"bench": "cache_memory", "adversary": steps, "one_lane": peak, "bar": options.bar, "met": met}
    print(
        f"{options.steps} adversary steps: {steps['steps_with_other_rows']} with rows other than the committed ones, "
        f"{steps['bytes_beside_cache_per_step']} bytes kept per step beside the cache\n"
        f"one lane of 2,048 tokens and more: peak {peak['peak_ratio']:.3f}x committed plus budget (bar {options.bar})"
    )
    print(json.dumps(record | {"provenance": provenance()}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
