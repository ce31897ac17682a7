"""Logits processors that only tests need, and transformers' own, as its ``generate`` would build them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel


class BanPrefixSum(LogitsProcessor):
    """Bans token (sum of the whole prefix) mod V: a law that no vector shared between nodes can have."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, input_ids.sum(1, keepdim=True) % scores.shape[1], -torch.inf)


class LikesPrefixSum(LogitsProcessor):
    """Writes into the scores it is given, as many processors do: adds to token (sum of the whole prefix) mod V."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for row, prefix in enumerate(input_ids):
            scores[row, int(prefix.sum()) % scores.shape[1]] += 3.0
        return scores


def two_steps_up(row: int, prefix: Tensor) -> list[int]:
    """A grammar: the next token is one to twelve above the last one, counted round, and row by row shifted."""
    return [(int(prefix[-1]) + row + step) % 37 for step in range(1, 13)]


def processors_of(model: PreTrainedModel, prompt: list[int], **options: Any) -> Any:
    """The processors that transformers' ``generate`` would use for these arguments."""
    seen = []

    def look(model, input_ids, logits_processor, stopping_criteria, generation_config, **_):
        seen.append(logits_processor)
        return input_ids

    model.generate(torch.tensor([prompt]), custom_generate=look, **options)
    return seen[0]
