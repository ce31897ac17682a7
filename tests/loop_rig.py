"""What tests of the loop share: requests, sessions run step by step, and drafters that stress them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from branchwise.decode.request import Request
from branchwise.decode.session import Lane, Session
from branchwise.decode.stopping import StopRules
from branchwise.target import HuggingFaceTarget, TargetOutput
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


class ScriptedTarget:
    """A target without a model: at position p it wants ``script[p + 1]``, on whatever branch. Keeps no keys or values.

    Args:
        script: prompt and output.
        vocab_size: ids run below this.
        context_limit: as of a model.
    """

    device = torch.device("cpu")

    def __init__(self, script: Sequence[int], vocab_size: int, context_limit: int | None = None) -> None:
        self._script = list(script)
        self.vocab_size = vocab_size
        self.context_limit = context_limit
        self.lengths: dict[int, int] = {}
        self.deepest = 0
        self._lanes = 0

    def open(self, expected_rows: int = 0, longest: int | None = None) -> int:
        self._lanes += 1
        self.lengths[self._lanes] = 0
        return self._lanes

    def prefill(self, lane: int, prompt: Sequence[int], feature_layers: tuple[int, ...] = ()) -> dict[int, Any]:
        assert list(prompt) == self._script[: len(prompt)]
        self.lengths[lane] = len(prompt) - 1
        return {}

    def feed(self, lane: int, tokens: Sequence[int], feature_layers: tuple[int, ...] = ()) -> dict[int, Any]:
        done = self.lengths[lane]
        assert list(tokens) == self._script[done : done + len(tokens)]
        self.lengths[lane] += len(tokens)
        return {}

    def limit_rows(self, rows: int) -> None:
        pass

    def clear(self, lane: int) -> None:
        self.lengths[lane] = 0

    def scrub(self, lane: int) -> None:
        pass

    @property
    def solo_beyond(self) -> int | None:
        return None

    def forward(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...] = ()) -> dict[int, TargetOutput]:
        return {lane: TargetOutput(self._logits(lane, tree)) for lane, tree in trees.items()}

    def _logits(self, lane: int, tree: TokenTree) -> torch.Tensor:
        logits = torch.zeros(len(tree), self.vocab_size)
        for node, depth in enumerate(tree.depth):
            position = self.lengths[lane] + depth
            self.deepest = max(self.deepest, position)
            logits[node, self._script[(position + 1) % len(self._script)]] = 10.0
        return logits

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        for lane, path in paths.items():
            self.lengths[lane] += len(path)

    def rollback(self) -> None:
        pass

    def free(self, lane: int) -> None:
        del self.lengths[lane]

    def length(self, lane: int) -> int:
        return self.lengths[lane]

    def depth_limit(self, lane: int) -> int | None:
        return None if self.context_limit is None else self.context_limit - 1 - self.lengths[lane]


class RunsOf:
    """Drafts the right chain so that the runs of the steps (accepted tokens and bonus) have given lengths, in turn.

    Args:
        script: prompt and output.
        lengths: tokens per step, each at least 1.
    """

    name = "runs"
    feature_layers: tuple[int, ...] = ()

    def __init__(self, script: Sequence[int], lengths: Sequence[int]) -> None:
        self._script = list(script)
        self._lengths = itertools.cycle(lengths)

    def start(self, context: Any) -> None:
        return None

    def propose(self, states: Sequence[Any], contexts: Sequence[Any], budgets: Sequence[int]) -> list[DraftTree]:
        drafts = []
        for context in contexts:
            done, drafted = len(context.tokens), next(self._lengths) - 1
            if context.max_depth is not None:
                drafted = min(drafted, context.max_depth)
            tree = TokenTree.from_chain(context.tokens[-1], self._script[done : done + drafted])
            drafts.append(DraftTree.deterministic(tree, self.name))
        return drafts

    def observe(self, states: Sequence[Any], records: Sequence[Any]) -> None:
        pass
