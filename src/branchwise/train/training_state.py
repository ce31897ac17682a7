"""The checkpoint of a training: everything the next step depends on, in one file that is whole or absent."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from .disk import write_whole

FORMAT: Final = 1
CHECKPOINT: Final = "checkpoint.pt"
HISTORY: Final = "history.jsonl"


class DamagedCheckpoint(ValueError):
    """A training's checkpoint cannot be read."""


@dataclass
class TrainingState:
    """What a training is at between two steps.

    Attributes:
        about: what it belongs to: kind of head, target, settings, data, vocabulary; compared before it is continued.
        step: steps done.
        seconds: of training so far.
        batches: batches seen.
        tokens: real tokens seen.
        weights: of the head.
        optimizer: its state.
        average: of the weights, if one is kept.
        random: torch's generator; nothing here draws from it, a head's own layers might.
    """

    about: dict[str, Any]
    step: int = 0
    seconds: float = 0.0
    batches: int = 0
    tokens: int = 0
    weights: dict[str, Any] | None = None
    optimizer: dict[str, Any] | None = None
    average: dict[str, Any] | None = None
    random: torch.Tensor | None = None

    def write(self, folder: Path) -> None:
        """Replaces the folder's checkpoint.

        Raises:
            DiskFull: no room; the earlier checkpoint is untouched.
        """
        save: Callable[[Path], None] = partial(torch.save, {"format": FORMAT, **vars(self)})
        write_whole(folder / CHECKPOINT, save, what=f"the checkpoint of step {self.step}")

    @classmethod
    def read(cls, folder: Path) -> TrainingState | None:
        """The folder's checkpoint, or None.

        Raises:
            DamagedCheckpoint: it cannot be read.
        """
        path = folder / CHECKPOINT
        if not path.exists():
            return None
        try:
            fields = torch.load(path, map_location="cpu", weights_only=True)
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            return cls(**fields)
        except (RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise DamagedCheckpoint(
                f"{path} cannot be read ({error}): delete it and train from the beginning"
            ) from None


class History:
    """What happened, one JSON object a line.

    Args:
        folder: of the training.
        step: lines of later steps are dropped: a resumed training writes them again.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / HISTORY
        kept = [line for line in self._lines() if json.loads(line)["step"] <= step]
        self._path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def add(self, **facts: Any) -> None:
        """Appends a line."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(facts) + "\n")

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        # a kill may have left half a line at the end
        return [line for line in lines if line.endswith("}")]
