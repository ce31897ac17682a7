"""Slow, independent oracles: plain decoding written out, one token at a time, without a cache."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel


@torch.no_grad()
def greedy_by_recompute(model: PreTrainedModel, prompt: list[int], new_tokens: int) -> list[int]:
    """The model's greedy output, the whole sequence run again for every token."""
    tokens = list(prompt)
    for _ in range(new_tokens):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.float().argmax()))
    return tokens[len(prompt) :]


@torch.no_grad()
def logits_by_recompute(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """Logits ``[L, V]`` of a plain forward over ``tokens``."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]
