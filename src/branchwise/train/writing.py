"""A data set comes into being: dialogues into shards, from where an earlier run stopped.

Knows the order of things (what is finished, what is next, when it is enough). How a dialogue is written is in
`dialogues`, how a shard lies on disk in `shards`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ..draft.protocol import Drafter
from ..target.protocol import Target
from .chat_frame import ChatFrame
from .dialogue_law import DialoguePlan
from .dialogues import Author, Dialogue
from .disk import require_room
from .identity import Identity
from .library import Library
from .openers import OpenerBook
from .plans import Planner, WritingSettings
from .progress import Progress
from .shards import BYTES_PER_TOKEN, Manifest, TokenSequence, read_shard, shard_numbers, write_shard

#: tokens of a whole dialogue per token of its answer, about; for the disk
WHOLE_PER_ANSWER = 2.0


@dataclass(frozen=True, eq=False)
class Desk:
    """What writing needs besides the settings.

    Attributes:
        target: writes.
        tokenizer: its tokenizer.
        identity: of both.
        frame: of its chats.
        drafter, budget, lanes: see `Author`.
    """

    target: Target
    tokenizer: Any
    identity: Identity
    frame: ChatFrame
    drafter: Drafter
    budget: int = 1
    lanes: int = 96


@dataclass
class Tally:
    """What a data set holds, and what this run added."""

    dialogues: int = 0
    answer_tokens: int = 0
    dropped: int = 0
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # answer tokens

    def add(self, sequence: TokenSequence) -> None:
        """Counts one more."""
        self.dialogues += 1
        self.answer_tokens += sequence.answer_tokens
        self.kinds[sequence.kind] += sequence.answer_tokens


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keeps a second process out of the folder; ends with the process, however that ended."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"another process is writing into {folder}: wait for it, or choose another folder") from None
    try:
        yield
    finally:
        lock.release()


def open_folder(folder: Path, manifest: Manifest) -> None:
    """Starts a data folder, or checks that it may be continued.

    Raises:
        ValueError: what is there was written with other settings; names one. TargetMismatch: by another target.
    """
    if not shard_numbers(folder):
        manifest.write(folder)
        return
    there = Manifest.read(folder)
    manifest.target.require_same(there.target, f"the data in {folder}")
    for name in sorted({*there.settings, *manifest.settings}):
        if there.settings.get(name) != manifest.settings.get(name):
            raise ValueError(
                f"{folder} was begun with {name.replace('_', '-')} {there.settings.get(name)!r}, now it is "
                f"{manifest.settings.get(name)!r}: use the same settings, or another folder"
            )


def write_dialogues(
    folder: Path,
    desk: Desk,
    settings: WritingSettings,
    *,
    answer_tokens: int,
    prompts: Sequence[str] = (),
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> Tally:
    """Writes until the folder holds ``answer_tokens`` tokens of answers, or every prompt is answered.

    Finished shards stay as they are. What was in flight at a kill is written anew.

    Raises:
        DamagedShard, DiskFull, TargetMismatch, ValueError: see there; finished shards are kept.
    """
    with only_writer(folder):
        open_folder(folder, Manifest(desk.identity, settings.as_dict()))
        library = Library(desk.tokenizer, desk.frame.stops)
        tally = Tally()
        done = set(shard_numbers(folder))
        for shard in sorted(done):
            for sequence in read_shard(folder, shard):
                library.take(sequence)
                tally.add(sequence)
        most = len(prompts) * settings.answer_tokens if prompts else answer_tokens
        missing = max(0, min(most, answer_tokens) - tally.answer_tokens)
        progress.say(
            require_room(folder, int(missing * WHOLE_PER_ANSWER * BYTES_PER_TOKEN), what="data still to write")
        )
        if tally.answer_tokens >= answer_tokens:
            return tally
        openers = None if prompts else OpenerBook(settings.seed, library.passages)
        planner = Planner(desk.tokenizer, desk.frame, settings, openers=openers, prompts=prompts)
        run = _Run(folder, settings, planner, library, tally, done, answer_tokens)
        author = Author(desk.target, desk.frame, desk.drafter, budget=desk.budget, lanes=desk.lanes, seed=settings.seed)
        began, had = clock(), tally.answer_tokens
        for dialogue in author.write(run.plans()):
            if dialogue is not None:
                run.take(dialogue)
            pace = (tally.answer_tokens - had) / max(clock() - began, 1e-9)
            note = f"{tally.answer_tokens:,} answer tokens in {tally.dialogues:,} dialogues, {pace:.0f} tokens/s"
            progress.update(min(tally.answer_tokens, answer_tokens), note)
        return tally


class _Run:
    """Which dialogues of which shards are still out."""

    def __init__(
        self,
        folder: Path,
        settings: WritingSettings,
        planner: Planner,
        library: Library,
        tally: Tally,
        done: set[int],
        answer_tokens: int,
    ) -> None:
        self._folder = folder
        self._size = settings.dialogues_per_shard
        self._planner = planner
        self._library = library
        self._tally = tally
        self._done = done
        self._wanted = answer_tokens
        self._out: dict[int, int] = {}  # dialogues not finished, per open shard
        self._kept: dict[int, list[TokenSequence]] = {}

    def plans(self) -> Iterator[DialoguePlan]:
        """Plans of every shard that is missing, until there is enough; a shard that was begun is always completed."""
        for shard in count():
            first = shard * self._size
            last = first + self._size
            if self._planner.count is not None:
                last = min(last, self._planner.count)
            if first >= last or (shard not in self._done and self._tally.answer_tokens >= self._wanted):
                return
            if shard in self._done:
                continue
            self._out[shard], self._kept[shard] = last - first, []
            for number in range(first, last):
                plan = self._planner.plan(number)
                if plan is not None:
                    yield plan
                else:
                    self._tally.dropped += 1
                    self._finish_one(shard)

    def take(self, dialogue: Dialogue) -> None:
        """Keeps a finished dialogue, and writes its shard once that is complete."""
        shard = dialogue.plan.number // self._size
        if self._library.take(dialogue.sequence):
            self._kept[shard].append(dialogue.sequence)
            self._tally.add(dialogue.sequence)
        else:
            self._tally.dropped += 1
        self._finish_one(shard)

    def _finish_one(self, shard: int) -> None:
        self._out[shard] -= 1
        if not self._out[shard]:
            del self._out[shard]
            write_shard(self._folder, shard, sorted(self._kept.pop(shard), key=lambda sequence: sequence.number))
