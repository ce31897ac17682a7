"""Measuring a cost table: forwards of trees of several sizes, behind several contexts, on any target.

Knows the target's protocol and a clock. What the tokens are does not change what a forward costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median_low

import torch

from ..target.protocol import Target
from ..tree import TokenTree, kary_shape
from .cost_table import Column, CostTable

#: tokens of a prompt that are fed at once
CHUNK = 512


def measure_table(
    target: Target,
    contexts: Sequence[int],
    nodes: Sequence[int],
    repeats: int = 5,
    progress: Callable[[str], None] = lambda what: None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostTable:
    """Measures; medians count, sizes take turns, and a first round of every context is not counted.

    Args:
        target: what is measured; nobody else may use it meanwhile. It is left without the lane this takes.
        contexts: committed tokens; rising.
        nodes: sizes of the trees; rising.
        repeats: counted forwards per size and context.
        progress: is told what comes next, once per round and per chunk that is read; see `count_parts`.
        clock: seconds.

    Raises:
        ValueError: a number is out of range, or the model does not have so many positions.
    """
    _check(target, contexts, nodes, repeats)
    trees = {count: _tree(count, target.vocab_size) for count in nodes}
    columns = []
    with _lane(target, contexts[-1] + nodes[-1]) as lane:
        for done, context in pairwise((0, *contexts)):
            _read(target, lane, done, context, progress)
            seconds: dict[int, list[float]] = {count: [] for count in nodes}
            for repeat in range(repeats + 1):
                progress(f"context {context}")
                for count, tree in trees.items():
                    took = _forward_seconds(target, lane, tree, clock)
                    if repeat:  # the first warms up
                        seconds[count].append(took)
            columns.append(Column(context, tuple(nodes), tuple(median_low(seconds[count]) for count in nodes)))
    return CostTable(tuple(columns))


def count_parts(contexts: Sequence[int], repeats: int) -> int:
    """How often `measure_table` tells of its progress."""
    chunks = sum(-(-(context - done) // CHUNK) for done, context in pairwise((0, *contexts)))
    return chunks + len(contexts) * (repeats + 1)


def fitting_contexts(target: Target, contexts: Sequence[int], largest_tree: int) -> list[int]:
    """Those that the model has room for, with a tree behind them."""
    limits = [limit for limit in (target.context_limit, target.solo_beyond) if limit is not None]
    return [context for context in contexts if all(context + largest_tree < limit for limit in limits)]


def _check(target: Target, contexts: Sequence[int], nodes: Sequence[int], repeats: int) -> None:
    for name, numbers in (("contexts", contexts), ("nodes", nodes)):
        if not numbers or list(numbers) != sorted(set(numbers)) or numbers[0] < 1:
            raise ValueError(f"{name} must be rising whole numbers from 1 on, got {list(numbers)}")
    if repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    if fitting_contexts(target, contexts, nodes[-1]) != list(contexts):
        limit = target.context_limit if target.solo_beyond is None else target.solo_beyond
        raise ValueError(
            f"contexts of {list(contexts)} tokens with trees of {nodes[-1]} nodes do not fit: the model is measured up "
            f"to {limit} tokens"
        )


def _tree(nodes: int, vocab_size: int) -> TokenTree:
    """Two children everywhere: depth and width both grow with the size."""
    return TokenTree([node % vocab_size for node in range(nodes)], kary_shape((2,) * nodes.bit_length())[:nodes])


@contextmanager
def _lane(target: Target, longest: int) -> Iterator[int]:
    lane = target.open(longest, longest=longest)
    try:
        yield lane
    finally:
        target.rollback()
        target.free(lane)


def _read(target: Target, lane: int, done: int, context: int, progress: Callable[[str], None]) -> None:
    """Commits tokens until the lane holds ``context`` of them."""
    for start in range(done, context, CHUNK):
        progress(f"reading {context} tokens")
        end = min(start + CHUNK, context)
        target.feed(lane, [token % target.vocab_size for token in range(start, end)])


def _forward_seconds(target: Target, lane: int, tree: TokenTree, clock: Callable[[], float]) -> float:
    began = clock()
    target.forward({lane: tree})
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
    took = clock() - began
    target.rollback()
    return took
