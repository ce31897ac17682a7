"""A toy target and a toy loop for drafters: greedy, no cache, a few dozen words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from branchwise.draft import DraftContext, Drafter, StepRecord
from branchwise.target.protocol import TargetOutput
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

#: whole prefix -> logits of the next token
Scorer = Callable[[Sequence[int]], torch.Tensor]


def bigram_scorer(vocab_size: int, seed: int = 0) -> Scorer:
    """A target whose next token depends on the last two."""

    def score(prefix: Sequence[int]) -> torch.Tensor:
        coins = random.Random(f"{seed} {tuple(prefix[-2:])}")
        return torch.tensor([coins.gauss(0.0, 3.0) for _ in range(vocab_size)])

    return score


def verify(draft: DraftTree, prefix: Sequence[int], score: Scorer) -> StepRecord:
    """One greedy step, path by path: no tree attention, no rule."""
    tree = draft.tree
    rows = [score([*prefix, *(tree.tokens[i] for i in tree.path(node)[1:])]) for node in range(len(tree))]
    path = [0]
    while True:
        best = int(rows[path[-1]].argmax())
        right = [child for child in tree.children(path[-1]) if tree.tokens[child] == best]
        if not right:
            break
        path.append(right[0])
    tokens = (*(tree.tokens[node] for node in path[1:]), best)
    return StepRecord(draft, Verdict(tuple(path), best), tokens, TargetOutput(torch.stack(rows)))


def generate(
    drafter: Drafter, prompts: Sequence[Sequence[int]], steps: int, budget: int, vocab_size: int, score: Scorer
) -> tuple[list[list[int]], list[list[StepRecord]]]:
    """Runs all prompts as lanes of one batch; returns each lane's tokens and records."""
    contexts = [DraftContext(list(prompt), vocab_size) for prompt in prompts]
    states = [drafter.start(context) for context in contexts]
    records: list[list[StepRecord]] = [[] for _ in prompts]
    for _ in range(steps):
        drafts = drafter.propose(states, contexts, [budget] * len(prompts))
        step = [verify(draft, context.tokens, score) for draft, context in zip(drafts, contexts, strict=True)]
        drafter.observe(states, step)
        for context, record, lane in zip(contexts, step, records, strict=True):
            context.tokens.extend(record.tokens)
            lane.append(record)
    return [context.tokens for context in contexts], records


def check_draft(draft: DraftTree, context: DraftContext, budget: int) -> None:
    """What every draft of every drafter must be."""
    tree: TokenTree = draft.tree
    assert tree.tokens[0] == context.tokens[-1]
    assert 1 <= len(tree) <= budget
    assert all(0 <= tree.parents[node] < node for node in range(1, len(tree)))
    assert all(0 <= token < context.vocab_size for token in tree.tokens)
    assert context.max_depth is None or max(tree.depth) <= context.max_depth
    siblings = [(tree.parents[node], tree.tokens[node]) for node in range(1, len(tree))]
    assert len(set(siblings)) == len(siblings)
    assert draft.is_deterministic
    assert len(draft.sources) == len(draft.scores) == len(tree) - 1
    assert all(0.0 <= score <= 1.0 for score in draft.scores)
