"""Writes down what a drafter proposes at every position of real texts, and which of it is right.

The target decodes plainly while the drafter proposes a full tree at every position; the right path is read off the
finished text. From the file, `tests/tune` replays every budget on the same text, without a model: one position's
accepted nodes say where the next step begins.

    python bench/record_drafts.py prompts.jsonl tests/tune/recorded_drafts.json

Prompts are rows of `question_id`, `category`, `turns`. Per position, one string of three words: parents (one digit of
base 36 per node), scores (two hexadecimal digits per drafted node: 255 times the square root), accepted nodes (base 36,
root first).
"""

from __future__ import annotations

import argparse
import json
import string
from pathlib import Path

import torch

from branchwise.bench.prompts import choose_prompts, encode_prompt, read_prompts
from branchwise.decode import Speculator
from branchwise.draft import StepRecord, make_drafter
from branchwise.hub import load
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Coins, Law, Verdict
from branchwise.verify.vectors import best_token

DIGITS = string.digits + string.ascii_lowercase


class OneToken:
    """Greedy decoding that accepts no draft, so that every position gets a step of its own."""

    name = "one_token"
    lossless = True

    def accept(self, draft: DraftTree, law: Law, coins: Coins) -> Verdict:
        """The lone root and the best token."""
        return Verdict((0,), best_token(law(0)))


def right_path(draft: DraftTree, future: list[int]) -> list[int]:
    """The nodes that a greedy verdict accepts when ``future`` is what the target writes."""
    path = [0]
    for token in future:
        child = draft.tree.child_with(path[-1], token)
        if child is None:
            break
        path.append(child)
    return path


def packed(record: StepRecord, future: list[int]) -> str:
    """One position as text; see the module."""
    parents = "".join(DIGITS[parent] for parent in record.draft.tree.parents[1:])
    scores = "".join(f"{round(255 * min(1.0, score) ** 0.5):02x}" for score in record.draft.scores)
    path = "".join(DIGITS[node] for node in right_path(record.draft, future))
    return f"{parents or '-'} {scores or '-'} {path}"


def main() -> None:
    """Runs and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="default")
    parser.add_argument("--drafter", default="mixed")
    parser.add_argument("--budget", type=int, default=33, help="most nodes of a tree, at most 36")
    parser.add_argument("--limit-per-category", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=80)
    options = parser.parse_args()
    if not 2 <= options.budget <= len(DIGITS):
        parser.error(f"a node is one digit of base 36: --budget must be 2 to 36, got {options.budget}")
    torch.manual_seed(0)
    model, tokenizer = load(options.model)
    speculator = Speculator(
        model, tokenizer, drafter=make_drafter(options.drafter), rule=OneToken(), budget=options.budget
    )
    texts: dict[str, list[str]] = {}
    for prompt in choose_prompts(read_prompts(options.prompts), limit_per_category=options.limit_per_category):
        generation = speculator.complete(
            encode_prompt(tokenizer, prompt.text), max_new_tokens=options.max_new_tokens, do_sample=False
        )
        tokens = list(generation.tokens)
        rows = [packed(record, tokens[at : at + options.budget]) for at, record in enumerate(generation.records)]
        texts.setdefault(prompt.category, []).extend(rows)
        print(prompt.category, prompt.question_id, len(rows), flush=True)
    record = {"model": options.model, "drafter": options.drafter, "budget": options.budget, "texts": texts}
    options.out.write_text(json.dumps(record, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
