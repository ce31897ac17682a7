"""A transformers model whose weights are spread over several processes (tensor parallelism).

The first process (rank 0) runs the whole loop: it drafts, judges and streams. Every forward needs all processes, so
before each one it tells the others what to do, and they do the same to their own share:

    rank 0    draft   forward(trees) ----------> decide   commit(paths)   draft   forward(trees) ...
                          | trees, earlier words   (alone)                            |
    others    (wait)  forward(trees) ------------------------------- (wait)  commit, forward ...

The others never look at a logit, so the processes cannot decide differently, whatever rounding does to their copies.
A process's cache holds the keys and values of its own heads; transformers' plan sums the rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..cache import Snapshot
from ..tree import TokenTree
from .huggingface import HuggingFaceTarget
from .protocol import TargetOutput
from .ranks import Ranks, RanksLost


class ShardedTarget:
    """The target of the loop, on rank 0. On the other ranks call `follow` instead.

    Use it as a context manager, or `close` it: the others follow until then.

    Args:
        model: this process's share, from `load_sharded`.
        options: as for `HuggingFaceTarget`; the same on every rank.

    Raises:
        UnsupportedModel: as for `HuggingFaceTarget`.
        ValueError: the model is whole, or this is not rank 0.
    """

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        check_sharded(model)
        self._ranks = Ranks()
        if self._ranks.rank:
            raise ValueError(f"this is process {self._ranks.rank}: only process 0 decides, here call follow(model)")
        self._own = HuggingFaceTarget(model, **options)
        self._lost: BaseException | None = None
        self._is_open = True
        self._numbers: weakref.WeakKeyDictionary[Snapshot, int] = weakref.WeakKeyDictionary()
        self._snapshots = 0
        self.model = model
        self.cache = self._own.cache
        self.vocab_size = self._own.vocab_size
        self.device = self._own.device
        self.context_limit = self._own.context_limit

    def __enter__(self) -> ShardedTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets the others go. Nothing can be run afterwards."""
        if self._is_open and self._lost is None:
            self._ranks.send("close")
        self._is_open = False

    # what needs all processes

    def prefill(self, lane: int, prompt: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.prefill`."""
        return self._together("prefill", lane, list(prompt), feature_layers)

    def feed(self, lane: int, tokens: Sequence[int], feature_layers: tuple[int, ...] = ()) -> Mapping[int, Tensor]:
        """See `Target.feed`."""
        return self._together("feed", lane, list(tokens), feature_layers)

    def forward(self, trees: Mapping[int, TokenTree], feature_layers: tuple[int, ...] = ()) -> dict[int, TargetOutput]:
        """See `Target.forward`."""
        return self._together("forward", dict(trees), feature_layers)

    def _together(self, name: str, *arguments: Any) -> Any:
        if self._lost is not None or not self._is_open:
            raise RanksLost("the processes are no longer in step; start all again") from self._lost
        try:
            self._ranks.send(name, self._lengths(), *arguments)
            return getattr(self._own, name)(*arguments)
        except ValueError:
            raise  # a refusal, before the model ran: the others refuse, too
        except BaseException as error:
            # the others may be in the middle of a forward that this process has left
            self._lost = error
            raise

    def _lengths(self) -> dict[int, int]:
        return {lane: self._own.length(lane) for lane in self.cache.lanes}

    # what every process does for itself, before the next forward

    def open(self, expected_rows: int = 0, longest: int | None = None) -> int:
        """See `Target.open`."""
        lane = self._own.open(expected_rows, longest)
        self._ranks.keep("open", expected_rows, longest)
        return lane

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """See `Target.commit`."""
        self._own.commit(paths)
        self._ranks.keep("commit", {lane: list(path) for lane, path in paths.items()})

    def rollback(self) -> None:
        """See `Target.rollback`."""
        self._own.rollback()
        self._ranks.keep("rollback")

    def clear(self, lane: int) -> None:
        """See `Target.clear`."""
        self._own.clear(lane)
        self._ranks.keep("clear", lane)

    def scrub(self, lane: int) -> None:
        """See `Target.scrub`."""
        self._own.scrub(lane)
        self._ranks.keep("scrub", lane)

    def free(self, lane: int) -> None:
        """See `Target.free`."""
        self._own.free(lane)
        self._ranks.keep("free", lane)

    def limit_rows(self, rows: int) -> None:
        """See `Target.limit_rows`."""
        self._own.limit_rows(rows)
        self._ranks.keep("limit_rows", rows)

    def snapshot(self, lane: int) -> Snapshot:
        """See `Target.snapshot`. The others keep their share as long as this one lives."""
        snapshot = self._own.snapshot(lane)
        number, self._snapshots = self._snapshots, self._snapshots + 1
        self._numbers[snapshot] = number
        self._ranks.keep("snapshot", lane, number)
        weakref.finalize(snapshot, self._ranks.keep, "forget", number).atexit = False
        return snapshot

    def restore(self, lane: int, snapshot: Snapshot, tokens: Sequence[int]) -> None:
        """See `Target.restore`."""
        number = self._numbers[snapshot]
        self._own.restore(lane, snapshot, tokens)
        self._ranks.keep("restore", lane, number, list(tokens))

    # what only looks

    def length(self, lane: int) -> int:
        """See `Target.length`."""
        return self._own.length(lane)

    def depth_limit(self, lane: int) -> int | None:
        """See `Target.depth_limit`."""
        return self._own.depth_limit(lane)

    @property
    def solo_beyond(self) -> int | None:
        """See `Target.solo_beyond`."""
        return self._own.solo_beyond


class _Follower:
    """Does to its share of a model what rank 0 does."""

    def __init__(self, target: HuggingFaceTarget) -> None:
        self._target = target
        self._snapshots: dict[int, Snapshot] = {}

    def do(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("prefill", "feed", "forward"):
            self._forward(name, *arguments)
        elif name == "snapshot":
            lane, number = arguments
            self._snapshots[number] = self._target.snapshot(lane)
        elif name == "restore":
            lane, number, tokens = arguments
            self._target.restore(lane, self._snapshots[number], tokens)
        elif name == "forget":
            del self._snapshots[arguments[0]]
        else:
            getattr(self._target, name)(*arguments)

    def _forward(self, name: str, lengths: dict[int, int], *arguments: Any) -> None:
        own = {lane: self._target.length(lane) for lane in self._target.cache.lanes}
        if own != lengths:
            raise RanksLost(f"this process holds lanes of lengths {own}, process 0 of {lengths}; start all again")
        with suppress(ValueError):  # process 0 gets the same refusal, and says what comes of it
            getattr(self._target, name)(*arguments)


@torch.no_grad()
def follow(model: PreTrainedModel, **options: Any) -> None:
    """Runs this process's share of every forward of rank 0, until that one is done.

    Args:
        model: this process's share, from `load_sharded`.
        options: those of rank 0's `ShardedTarget`.

    Raises:
        RanksLost: rank 0 has died, or the processes fell out of step.
        ValueError: the model is whole.
        Exception: what a forward raised here; the process must end with it, so that the others do not wait for it.
    """
    check_sharded(model)
    ranks = Ranks()
    follower = _Follower(HuggingFaceTarget(model, **options))
    while True:
        for name, arguments in ranks.receive():
            if name == "close":
                return
            follower.do(name, arguments)


def check_sharded(model: PreTrainedModel) -> None:
    """Raises ValueError for a model that is whole in this process."""
    if not is_sharded(model):
        raise ValueError(
            f"this {type(model).__name__} is whole in every process: load it with branchwise.target.load_sharded"
        )


def is_sharded(model: Any) -> bool:
    """Whether a model's weights are spread over processes."""
    return (getattr(model, "tp_size", None) or 1) > 1
