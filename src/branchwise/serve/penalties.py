"""OpenAI's penalties and biases as logits processors: functions of a prefix and scores, like all processors here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class OutputPenalty:
    """Lowers the scores of tokens that the output holds already; the prompt does not count.

    As in OpenAI's API: ``score - frequency * count - presence * (count > 0)``.

    Args:
        prompt_tokens: where the output begins.
        frequency: per occurrence.
        presence: once.
    """

    def __init__(self, prompt_tokens: int, frequency: float, presence: float) -> None:
        self._prompt_tokens = prompt_tokens
        self._frequency = frequency
        self._presence = presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """``input_ids [1, L]``, ``scores [1, V]``."""
        written = input_ids[0, self._prompt_tokens :]
        counts = torch.bincount(written, minlength=scores.shape[1]).to(scores.dtype)  # [V]
        return scores - self._frequency * counts - self._presence * (counts > 0).to(scores.dtype)


class LogitBias:
    """Adds numbers to the scores of some tokens.

    Args:
        bias: token -> what is added.
    """

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens = torch.tensor(list(bias))
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float64)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """``input_ids [1, L]``, ``scores [1, V]``."""
        added = self._bias.to(scores.device, scores.dtype)[None]
        return scores.index_add(1, self._tokens.to(scores.device), added)
