"""One forward of N tree nodes behind a long context, against transformers' own way to do the same.

    ours          HuggingFaceTarget.forward + rollback: preallocated cache, tree attention
    transformers  model(...) on its sdpa path with a 4-D mask and a DynamicCache, cropped after each forward

Both run the same model on the same tokens, in turns, so that a busy machine slows both alike; the medians are compared.
The logits are checked against each other first. The last line is one JSON object; exit code 1 when the bar is missed.

    python bench/forward.py                               # 16 nodes at context 6000, default model, bfloat16
    python bench/forward.py --nodes 33 --context 1000
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from branchwise import TokenTree
from branchwise.bench.provenance import model_facts, provenance
from branchwise.hub import load, resolve
from branchwise.target import HuggingFaceTarget

PREFILL_CHUNK = 512


class TransformersForward:
    """The tree through transformers' sdpa path."""

    def __init__(self, model: PreTrainedModel, prompt: list[int], tree: TokenTree) -> None:
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self.keyword = "cache" if "cache" in parameters else "past_key_values"
        self.cache: Any = DynamicCache(config=model.config)
        committed = len(prompt) - 1
        for start in range(0, committed, PREFILL_CHUNK):
            chunk = torch.tensor([prompt[start : min(start + PREFILL_CHUNK, committed)]])
            model(input_ids=chunk, use_cache=True, logits_to_keep=1, **{self.keyword: self.cache})
        n = len(tree)
        self.ids = torch.tensor([tree.tokens])  # [1, N]
        self.positions = committed + torch.tensor([tree.depth])  # [1, N]
        visible = torch.cat([torch.ones(n, committed, dtype=torch.bool), tree.ancestors()], dim=1)  # [N, S + N]
        self.mask = visible[None, None]  # [1, 1, N, S + N]

    def __call__(self) -> torch.Tensor:
        """Logits ``[N, V]``; the cache is back at the prompt afterwards."""
        output = self.model(
            input_ids=self.ids,
            position_ids=self.positions,
            attention_mask=self.mask,
            use_cache=True,
            **{self.keyword: self.cache},
        )
        self.cache.crop(-self.ids.shape[1])
        return output.logits[0]


class OurForward:
    """The tree through this library."""

    def __init__(self, model: PreTrainedModel, prompt: list[int], tree: TokenTree) -> None:
        self.target, self.tree = HuggingFaceTarget(model), tree
        self.lane = self.target.open(len(prompt) + len(tree), longest=len(prompt))
        self.target.prefill(self.lane, prompt)

    def __call__(self) -> torch.Tensor:
        """Logits ``[N, V]``; the cache is back at the prompt afterwards."""
        output = self.target.forward({self.lane: self.tree})[self.lane]
        self.target.rollback()
        return output.logits


def in_turns(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of each, alternating, who goes first changing every time; two uncounted rounds before."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(-2, repeats):
        order = [(first, seconds[0]), (second, seconds[1])]
        for act, notes in order if turn % 2 else order[::-1]:
            began = time.perf_counter()
            act()
            if turn >= 0:
                notes.append(time.perf_counter() - began)
    return seconds


def main() -> int:
    """Measures and prints; 0 when the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--context", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bar", type=float, default=0.5, help="greatest ratio of our time to transformers'")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, _ = load(options.model, dtype=getattr(torch, options.dtype))

    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_output_embeddings().out_features
    tokens = torch.randint(vocabulary, (options.context + options.nodes,), generator=generator).tolist()
    # three children per node: the shape hardly matters, what costs is the number of nodes and the context
    parents = [(node - 1) // 3 for node in range(options.nodes)]
    tree = TokenTree(tokens[options.context :], [-1, *parents[1:]])
    prompt = [*tokens[: options.context], tree.tokens[0]]
    with torch.no_grad():
        theirs, ours = TransformersForward(model, prompt, tree), OurForward(model, prompt, tree)
        one, other = theirs().double(), ours().double()
        their_seconds, our_seconds = in_turns(theirs, ours, options.repeats)
    ratio = median(our_seconds) / median(their_seconds)
    record = {
        "bench": "forward",
        "nodes": options.nodes,
        "context": options.context,
        "repeats": options.repeats,
        "ours_ms": round(1000 * median(our_seconds), 2),
        "transformers_ms": round(1000 * median(their_seconds), 2),
        "ratio": round(ratio, 4),
        "bar": options.bar,
        "met": ratio <= options.bar,
        "greatest_logit_difference": float((one - other).abs().max()),
        "greatest_logit": float(one.abs().max()),
        "equal_best_tokens": int((one.argmax(-1) == other.argmax(-1)).sum()),
        "provenance": provenance(model=model_facts(options.model, resolve(options.model), model)),
    }
    print(
        f"{options.nodes} nodes at context {options.context}: ours {record['ours_ms']} ms, transformers "
        f"{record['transformers_ms']} ms, ratio {ratio:.2f} (bar {options.bar})"
    )
    print(json.dumps(record))
    return 0 if record["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
