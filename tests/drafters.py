"""Drafters that only tests need: they stress the loop, not the target."""

from __future__ import annotations

import random

from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree


class RandomTrees:
    """Random trees of random size in random topological order; siblings may be wrong, right or duplicated."""

    name = "random"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, seed: int = 0, distinct: bool = True) -> None:
        self._random = random.Random(seed)
        self._distinct = distinct

    def start(self, context):
        return None

    def propose(self, states, contexts, budgets):
        return [self._draft(context, budget) for context, budget in zip(contexts, budgets, strict=True)]

    def _draft(self, context, budget):
        tokens, parents, depth = [context.tokens[-1]], [-1], [0]
        for _ in range(self._random.randint(0, budget - 1)):
            parent = self._random.randrange(len(tokens))
            token = self._random.randrange(context.vocab_size)
            if context.max_depth is not None and depth[parent] >= context.max_depth:
                continue
            siblings = [t for t, p in zip(tokens, parents, strict=True) if p == parent]
            if self._distinct and token in siblings:
                continue
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent] + 1)
        return DraftTree.deterministic(TokenTree(tokens, parents), "random")

    def observe(self, states, records):
        pass


class Scripted:
    """Proposes trees around a known continuation: right paths with wrong siblings, not in breadth-first order.

    Args:
        futures: prompt (as a tuple) -> its known output.
        depth: how many right tokens to draft at once.
        siblings: wrong siblings beside each right token.
    """

    name = "scripted"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, futures, depth=4, siblings=2, vocab=37):
        self._futures = futures
        self._depth = depth
        self._siblings = siblings
        self._vocab = vocab

    def start(self, context):
        return tuple(context.tokens)

    def propose(self, states, contexts, budgets):
        drafts = []
        for prompt, context, budget in zip(states, contexts, budgets, strict=True):
            done = len(context.tokens) - len(prompt)
            right = self._futures[prompt][done : done + self._depth]
            if context.max_depth is not None:
                right = right[: context.max_depth]
            tokens, parents, at = [context.tokens[-1]], [-1], 0
            for token in right:
                wrong = [(token + 1 + i) % self._vocab for i in range(self._siblings)]
                for sibling in wrong:
                    tokens.append(sibling)
                    parents.append(at)
                tokens.append(token)
                parents.append(at)
                at = len(tokens) - 1
            n = min(budget, len(tokens))
            drafts.append(DraftTree.deterministic(TokenTree(tokens[:n], parents[:n]), "scripted"))
        return drafts

    def observe(self, states, records):
        pass
