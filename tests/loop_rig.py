"""What tests of the loop share: requests, sessions run step by step, and drafters that stress them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from branchwise.decode.request import Request
from branchwise.decode.session import Lane, Session
from branchwise.decode.stopping import StopRules
from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree
from branchwise.tune.budget import FixedBudget
from branchwise.verify.greedy import Greedy
from branchwise.verify.law import Sampler
from branchwise.verify.proposal import DraftTree


def greedy_request(prompt: Sequence[int], new_tokens: int, **options: Any) -> Request:
    """A greedy request that only its length ends."""
    return Request(tuple(prompt), Sampler(), StopRules(new_tokens), **options)


def start_session(model: Any, drafter: Any, budget: int = 12, **options: Any) -> Session:
    """A session over a target of its own."""
    return Session(HuggingFaceTarget(model), drafter, FixedBudget(budget), **options)


def run_greedy(session: Session, requests: Sequence[Request]) -> list[list[int]]:
    """Adds all requests at once and runs them to the end; returns their outputs."""
    lanes = [session.add(request, Greedy()) for request in requests]
    finish(session)
    return [lane.generated for lane in lanes]


def finish(session: Session) -> None:
    """Steps until every lane has stopped."""
    while session.active:
        session.step()


class WildTrees:
    """Random trees around a known continuation: any size down to a lone root, any topological order, siblings distinct.

    Unlike `drafters.RandomTrees` these are accepted now and then, to any depth, through nodes whose numbers have gaps.

    Args:
        futures: prompt (as a tuple) -> its known output.
        seed: of the shapes.
        right: how often a node below the known continuation continues it.
    """

    name = "wild"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, futures: dict[tuple[int, ...], Sequence[int]], seed: int = 0, right: float = 0.6) -> None:
        self._futures = futures
        self._random = random.Random(seed)
        self._right = right

    def start(self, context: Any) -> tuple[int, ...]:
        return tuple(context.tokens)

    def propose(self, states: Sequence[Any], contexts: Sequence[Any], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._draft(*lane) for lane in zip(states, contexts, budgets, strict=True)]

    def _draft(self, prompt: tuple[int, ...], context: Any, budget: int) -> DraftTree:
        known = self._futures[prompt][len(context.tokens) - len(prompt) :]
        tokens, parents, depth = [context.tokens[-1]], [-1], [0]
        followed = {0}  # nodes that lie on the known continuation
        taken: list[set[int]] = [set()]
        for _ in range(self._random.randint(0, budget - 1)):
            parent = self._random.choice([*range(len(tokens)), max(followed)])
            at = depth[parent]
            if context.max_depth is not None and at >= context.max_depth:
                continue
            follows = parent in followed and at < len(known) and self._random.random() < self._right
            token = known[at] if follows else self._random.randrange(context.vocab_size)
            if token in taken[parent]:
                continue
            if parent in followed and at < len(known) and token == known[at]:
                followed.add(len(tokens))
            taken[parent].add(token)
            tokens.append(token)
            parents.append(parent)
            depth.append(at + 1)
            taken.append(set())
        return DraftTree.deterministic(TokenTree(tokens, parents), self.name)

    def observe(self, states: Sequence[Any], records: Sequence[Any]) -> None:
        pass


def committed_tokens(lane: Lane) -> list[int]:
    """Tokens of a lane whose keys and values are in the cache: all but the root."""
    return lane.context.tokens[:-1]
