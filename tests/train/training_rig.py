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
from branchwise.train.shards import ANSWER, Manifest, TokenSequence, read_all, write_shard
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


#: texts that a small head can learn by heart: how many, their length, and the part of it that is prompt
TEXTS = 3
LENGTH = 40
PROMPT_TOKENS = 6


def learnable_target(folder: Path) -> tuple[Any, Any]:
    """A target in float32 without ties."""
    model, tokenizer = tiny_chat(folder)
    with torch.no_grad():  # the folder's special tokens share one row: their ties are nobody's to learn
        model.lm_head.weight.normal_(0, 0.4)
    return model.float(), tokenizer


def write_known_texts(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Few greedy texts, each many times. Every number occurs on both sides."""
    Manifest(Identity.of(model, tokenizer), {}).write(folder)
    chance = np.random.default_rng(1)
    prompts = [chance.integers(6, model.config.vocab_size, PROMPT_TOKENS).tolist() for _ in range(TEXTS)]
    texts = [greedy(model, prompt, LENGTH) for prompt in prompts]
    roles = np.full(LENGTH, ANSWER, np.uint8)
    roles[:PROMPT_TOKENS] = 0
    for shard in range(2):
        numbers = range(shard * 64, shard * 64 + 64)
        write_shard(
            folder, shard, [TokenSequence(n, "test", np.array(texts[n % TEXTS], np.int32), roles) for n in numbers]
        )
    return folder


def greedy(model: Any, prompt: list[int], length: int) -> list[int]:
    """The oracle: one forward per token, without a cache."""
    tokens = list(prompt)
    while len(tokens) < length:
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens


def known_texts(data: Path) -> list[list[int]]:
    """The texts of `write_known_texts`."""
    return [s.tokens.tolist() for s in list(read_all(data))[:TEXTS]]
