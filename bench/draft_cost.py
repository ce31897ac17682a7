"""What a draft costs per step, by drafter and by length of the history, and what the suffix store costs per token.

A step is: read the tokens of the last step, draft a tree, learn from the verdict. No model is run: the text is made up
(repeated phrases and random words, both with a few common tokens and many rare ones) and taken for the target's output;
the target's logits, which `recycling` learns from, name the right token first. Times are of the process (other
processes on the machine change them little), medians over all steps. The last line is one JSON object; exit code 1 when
a bar is missed: ngram and suffix above 0.3 ms at the longest history, or the store above 64 bytes per token.

    python bench/draft_cost.py
    python bench/draft_cost.py --history 1000 --steps 50
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from statistics import mean, median

import torch

from branchwise.bench.provenance import provenance
from branchwise.draft import DraftContext, Drafter, StepRecord, SuffixDrafter, SuffixStore, make_drafter
from branchwise.target.protocol import TargetOutput
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

BARRED = ("ngram", "suffix", "suffix with a full store")
STEP_BAR_MS = 0.3
STORE_BAR_BYTES = 64.0


def made_up_text(length: int, vocab_size: int, seed: int) -> list[int]:
    """Phrases that come back, each with the same chance, and as many random words between them."""
    coins = random.Random(seed)

    def words() -> list[int]:
        return [int(vocab_size * coins.random() ** 3) for _ in range(coins.randint(3, 30))]

    phrases = [words() for _ in range(max(1, length // 100))]
    text: list[int] = []
    while len(text) < length:
        text += coins.choice(phrases) if coins.random() < 0.7 else words()
    return text[:length]


def drafter_makers(stored_tokens: int, vocab_size: int) -> dict[str, Callable[[], Drafter]]:
    """The drafters that are measured, by name."""

    def with_full_store() -> Drafter:
        store = SuffixStore(stored_tokens)
        text = made_up_text(stored_tokens + 1000, vocab_size, seed=2)
        for start in range(0, len(text), 500):
            store.add(text[start : start + 500])
        return SuffixDrafter(store)

    makers: dict[str, Callable[[], Drafter]] = {
        # mypy has no type for a lambda's default
        name: lambda name=name: make_drafter(name)  # type: ignore[misc]
        for name in ("ngram", "suffix", "recycling", "mixed")
    }
    return makers | {"suffix with a full store": with_full_store}


def verified(draft: DraftTree, future: Sequence[int], logits: torch.Tensor | None) -> StepRecord:
    """The step a target would have made whose output is known."""
    tree, path = draft.tree, [0]
    for token in future[:-1]:
        child = tree.child_with(path[-1], token)
        if child is None:
            break
        path.append(child)
    bonus = future[len(path) - 1]
    tokens = (*(tree.tokens[node] for node in path[1:]), bonus)
    output = None
    if logits is not None:
        rows = logits[: len(tree)].clone()
        for depth, node in enumerate(path):
            rows[node, future[depth]] = 50.0
        output = TargetOutput(rows)
    return StepRecord(draft, Verdict(tuple(path), bonus), tokens, output)


def measure(drafter: Drafter, history: int, steps: int, budget: int, vocab_size: int) -> dict[str, float]:
    """Milliseconds per step, microseconds per token of the prompt, and what the trees were like."""
    text = made_up_text(history + steps * budget, vocab_size, seed=1)
    context = DraftContext(text[:history], vocab_size)
    logits = torch.randn(budget, vocab_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    began = time.process_time()
    state = drafter.start(context)
    start_seconds = time.process_time() - began
    propose, observe, nodes, tokens = [], [], [], []
    for _ in range(steps):
        began = time.process_time()
        (draft,) = drafter.propose([state], [context], [budget])
        propose.append(time.process_time() - began)
        done = len(context.tokens)
        record = verified(draft, text[done : done + budget], logits if drafter.name in ("recycling", "mixed") else None)
        began = time.process_time()
        drafter.observe([state], [record])
        observe.append(time.process_time() - began)
        context.tokens.extend(record.tokens)
        nodes.append(len(draft.tree))
        tokens.append(len(record.tokens))
    return {
        "step_ms": round(1e3 * median(map(sum, zip(propose, observe, strict=True))), 4),
        "propose_ms": round(1e3 * median(propose), 4),
        "observe_ms": round(1e3 * median(observe), 4),
        "start_us_per_token": round(1e6 * start_seconds / history, 3),
        "nodes": round(mean(nodes), 1),
        "tokens_per_step": round(mean(tokens), 2),
    }


def store_bytes(tokens: int, vocab_size: int) -> dict[str, float]:
    """Bytes per token of a store while it grows, at its worst and when it is full."""
    store = SuffixStore(tokens)
    text = made_up_text(2 * tokens, vocab_size, seed=3)
    worst = 0.0
    for start in range(0, len(text), 500):
        store.add(text[start : start + 500])
        if len(store) >= 5000:  # below, a few fixed hundred bytes show
            worst = max(worst, store.bytes / len(store))
    return {"tokens": len(store), "bytes_per_token": round(store.bytes / len(store), 2), "worst": round(worst, 2)}


def main() -> int:
    """Measures and prints; 0 when all bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", default="1000,10000,50000", help="tokens before the first step, comma between")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--budget", type=int, default=33)
    parser.add_argument("--vocab-size", type=int, default=20_000)
    parser.add_argument("--stored-tokens", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    histories = [int(history) for history in options.history.split(",")]
    rows = []
    for name, make in drafter_makers(options.stored_tokens, options.vocab_size).items():
        for history in histories:
            row = measure(make(), history, options.steps, options.budget, options.vocab_size)
            rows.append({"drafter": name, "history": history} | row)
            print(
                f"{name:24} {history:6} tokens: {row['step_ms']:.3f} ms per step ({row['propose_ms']:.3f} to draft, "
                f"{row['observe_ms']:.3f} to learn), {row['nodes']} nodes, {row['tokens_per_step']} tokens per step, "
                f"{row['start_us_per_token']} us per token of the prompt",
                flush=True,
            )
    store = store_bytes(options.stored_tokens, options.vocab_size)
    print(f"suffix store: {store['bytes_per_token']} bytes per token when full, {store['worst']} at worst")
    slow = [row for row in rows if row["drafter"] in BARRED and row["history"] == max(histories)]
    met = store["worst"] <= STORE_BAR_BYTES and all(row["step_ms"] <= STEP_BAR_MS for row in slow)
    record = {"bench": "draft_cost", "budget": options.budget, "steps": options.steps, "rows": rows, "store": store}
    record |= {"step_bar_ms": STEP_BAR_MS, "store_bar_bytes": STORE_BAR_BYTES, "met": met, "provenance": provenance()}
    print(json.dumps(record))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
