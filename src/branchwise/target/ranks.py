"""Words from the first process to the others: one broadcast brings everything that was said since the last one.

Knows processes and what can be pickled; does not know what the words mean.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any

import torch.distributed as dist

#: the others wait so long for the next word: a server may have nobody to serve for days. A process that has died is
#: noticed at once all the same, because its connections close
PATIENCE = timedelta(days=100)

Word = tuple[str, tuple[Any, ...]]


class RanksLost(RuntimeError):
    """The processes are no longer in step; the model they share cannot be run any more."""


class Ranks:
    """The process group of one model, with a channel of its own beside the model's collectives.

    Every process makes one, at the same point.

    Raises:
        ValueError: there is no process group.
    """

    def __init__(self) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("there is no process group: load the model with branchwise.target.load_sharded")
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        # words are bytes of the host: gloo also where the model's own collectives are nccl's
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._kept: deque[Word] = deque()

    def keep(self, name: str, *arguments: Any) -> None:
        """Says something with the next `send`. From any thread."""
        self._kept.append((name, arguments))

    def send(self, name: str, *arguments: Any) -> None:
        """Says everything that was kept, and this."""
        words = [self._kept.popleft() for _ in range(len(self._kept))]
        self._broadcast([*words, (name, arguments)])

    def receive(self) -> list[Word]:
        """Waits for the first process."""
        return self._broadcast(None)

    def _broadcast(self, words: list[Word] | None) -> list[Word]:
        box: list[Any] = [words]
        try:
            dist.broadcast_object_list(box, src=0, group=self._group)
        except RuntimeError as error:
            raise RanksLost(f"process {self.rank} lost the others ({_first_line(error)}); start all again") from error
        return box[0]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
