"""What the tests of training share: a tiny chat model in memory, settings that finish at once, silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from branchwise.draft.registry import make_drafter
from branchwise.target import HuggingFaceTarget
from branchwise.train.chat_frame import ChatFrame
from branchwise.train.identity import Identity
from branchwise.train.plans import WritingSettings
from branchwise.train.shards import ANSWER, TokenSequence
from branchwise.train.writing import Desk
from tiny_folder import save_tiny_model

QUICK = WritingSettings(answer_tokens=10, longest=120, dialogues_per_shard=4)


class Listener:
    """Progress that remembers; may interrupt after so many updates."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.lines: list[str] = []
        self.updates: list[tuple[float, str]] = []
        self._left = interrupt_after

    def update(self, done: float, note: str) -> None:
        self.updates.append((done, note))
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise KeyboardInterrupt

    def say(self, line: str) -> None:
        self.lines.append(line)


def tiny_chat(folder: Path) -> tuple[Any, Any]:
    """A random model with a chat template, and its tokenizer."""
    place = save_tiny_model(folder, chat=True)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64).eval()
    return model, AutoTokenizer.from_pretrained(place)


def tiny_desk(folder: Path, *, lanes: int = 3, drafter: str = "none", budget: int = 1) -> Desk:
    """A desk with that model."""
    model, tokenizer = tiny_chat(folder)
    frame = ChatFrame.read(tokenizer, [2])
    identity = Identity.of(model, tokenizer)
    return Desk(HuggingFaceTarget(model), tokenizer, identity, frame, make_drafter(drafter), budget, lanes)


def answer_sequence(number: int, tokens: list[int], prompt_tokens: int = 1) -> TokenSequence:
    """A sequence whose first tokens are context and whose others are answer."""
    roles = np.full(len(tokens), ANSWER, np.uint8)
    roles[:prompt_tokens] = 0
    return TokenSequence(number, "test", np.array(tokens, np.int32), roles)
