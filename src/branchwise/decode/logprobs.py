"""Log-probabilities of emitted tokens: of the model itself, before any processor or grammar.

They are read off the logits that the step's forward gave for the node before each token, so they are those of plain
decoding and cost no forward. Float64 models are read in float64, all others in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .orders import Order


@dataclass(frozen=True)
class TokenLogprobs:
    """One emitted token.

    Attributes:
        token: its id.
        logprob: natural logarithm of the probability that the model's raw logits give it (softmax over the whole
            vocabulary: no temperature, no penalty, no truncation, no grammar).
        top: the most probable tokens there and their log-probabilities, best first, the lowest id first among equals;
            as many as were asked for. The emitted token need not be one of them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def with_logprobs(orders: Sequence[Order], count: int, vocab_size: int) -> list[Order]:
    """The orders, each keeping log-probabilities with ``count`` alternatives.

    Raises:
        ValueError: ``count`` is no whole number from 0 to ``vocab_size``.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= vocab_size:
        raise ValueError(
            f"logprobs must be a whole number from 0 (the chosen token only) to {vocab_size} (the vocabulary), got "
            f"{count!r}"
        )
    return [replace(order, request=replace(order.request, logprobs=count)) for order in orders]


def token_logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """Log-probabilities of one run.

    Args:
        logits: ``[n, V]``, row i from the node that token i follows.
        tokens: n emitted tokens.
        count: alternatives per token.
    """
    rows = logits if logits.dtype == torch.float64 else logits.float()  # [n, V]
    totals = rows.logsumexp(-1).tolist()  # [n]
    return [
        TokenLogprobs(token, float(row[token]) - total, _best(row, total, count))
        for row, total, token in zip(rows, totals, tokens, strict=True)
    ]


def _best(row: Tensor, total: float, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    border = row.topk(count).values[-1]
    ids = torch.nonzero(row >= border)[:, 0]  # [>= count], ascending: topk itself breaks ties as it likes
    values = row[ids]
    order = torch.sort(values, descending=True, stable=True).indices[:count]
    return tuple(
        (token, value - total) for token, value in zip(ids[order].tolist(), values[order].tolist(), strict=True)
    )
