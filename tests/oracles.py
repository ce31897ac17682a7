"""Slow, independent oracles: plain decoding written out, one token at a time, without a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from branchwise.verify.coins import SeededCoins


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


@torch.no_grad()
def sampled_by_recompute(
    model: PreTrainedModel, prompt: list[int], new_tokens: int, processors: Any, seed: int, return_index: int = 0
) -> list[int]:
    """Plain sampling written out: every token from the law of its whole prefix, with the coin of its position."""
    tokens = list(prompt)
    for _ in range(new_tokens):
        ids = torch.tensor([tokens])
        scores = processors(ids, model(ids, use_cache=False).logits[:, -1])
        coins = SeededCoins(seed, return_index, position=len(tokens))
        tokens.append(coins.choice(scores[0].softmax(0)))
    return tokens[len(prompt) :]
