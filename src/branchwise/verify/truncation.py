"""The truncating processors of transformers without the sort: the same kept tokens, from a partial selection.

Each function here equals one of transformers' own classes (matched by exact type, with its default filter value of
minus infinity). They take one row of scores ``[V]`` and leave it as it was. On the CPU the trick is the same
everywhere: tokens that can be kept lie near the top, so look only at scores within a few nats of the maximum, and widen
the look when they are too few. Equal scores are always looked at together.

One choice is ours. transformers sorts ascending with ``stable=False``; when the border of top-p falls among equal
scores (common with bfloat16 logits), which of them it keeps depends on the machine: torch's AVX-512 sort is not stable,
the portable one is. We keep as many of them as transformers does, and those that a stable sort keeps: the highest ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: how far below the maximum to look, in nats, before looking at everything
_LOOKS_NATS = (5.0, 12.0)

#: how far from the entropy to look, in nats, before looking at everything
_TYPICAL_LOOKS_NATS = (1.0, 4.0)

#: transformers sums float32 probabilities; nearer to the border of a mass than this its rounding decides, not ours
_DOUBT = 4e-6


def fast_equal(processor: Any) -> Callable[[Tensor], Tensor] | None:
    """A function of scores ``[V]`` that equals ``processor``, or None when only the processor itself will do."""
    from transformers.generation import logits_process as own

    kind = type(processor)
    if kind is own.TemperatureLogitsWarper:
        return partial(temper, processor.temperature)
    if getattr(processor, "filter_value", None) != -math.inf:
        return None
    if kind is own.TopKLogitsWarper:
        return partial(keep_top_k, processor.top_k)
    if kind is own.TopPLogitsWarper:
        return partial(keep_top_p, processor.top_p, processor.min_tokens_to_keep)
    if kind is own.MinPLogitsWarper and processor.min_tokens_to_keep == 1:
        return partial(keep_min_p, processor.min_p)
    if kind is own.TypicalLogitsWarper and processor.min_tokens_to_keep == 1:
        return partial(keep_typical, processor.mass)
    return None


def temper(temperature: float, scores: Tensor) -> Tensor:
    """`TemperatureLogitsWarper`."""
    return scores / temperature


def keep_top_k(k: int, scores: Tensor) -> Tensor:
    """Keeps every score that is no lower than the k-th highest, ties included: `TopKLogitsWarper`."""
    k = min(k, len(scores))
    if _on_cpu_and_finite(scores):
        values = scores.numpy()
        for near in _near_the_top(values):
            if len(near) >= k:
                border = np.partition(values[near], len(near) - k)[len(near) - k]
                return _only(scores, near[values[near] >= border])
    return scores.masked_fill(scores < scores.topk(k).values[-1], -math.inf)


def keep_top_p(top_p: float, min_tokens: int, scores: Tensor) -> Tensor:
    """Keeps the fewest best tokens whose mass reaches ``top_p``: `TopPLogitsWarper`.

    transformers removes a token when the mass of the tokens up to and including it, in ascending order, is at most
    ``1 - top_p``. Seen from the top: a token goes when the better ones already hold ``top_p``.
    """
    if _on_cpu_and_finite(scores):
        values = scores.numpy()
        log_total = float(torch.logsumexp(scores, 0))
        for near in _near_the_top(values):
            # descending, the highest id first among equals: a stable ascending sort read backwards
            order = near[::-1][np.argsort(-values[near][::-1], kind="stable")]
            held = np.cumsum(np.exp(values[order].astype(np.float64) - log_total))  # mass down to each rank
            last = int(np.searchsorted(held, top_p))  # the rank whose token completes top_p
            if last >= len(order) or last + 1 < min_tokens:
                continue
            before = held[last - 1] if last else 0.0
            if min(held[last] - top_p, top_p - before) < _DOUBT:
                break
            return _only(scores, order[: last + 1])
    ordered, ids = torch.sort(scores, stable=True)
    removed = ordered.softmax(0).cumsum(0) <= 1 - top_p  # [V], ascending
    removed[max(len(removed) - min_tokens, 0) :] = False
    return scores.index_fill(0, ids[removed], -math.inf)


def keep_min_p(min_p: float, scores: Tensor) -> Tensor:
    """Keeps tokens at least ``min_p`` times as likely as the best one: `MinPLogitsWarper`."""
    probabilities = scores.softmax(0)
    removed = probabilities < min_p * probabilities.amax()
    if scores.device.type == "cpu":
        return _only(scores, np.flatnonzero(~removed.numpy()))
    return scores.masked_fill(removed, -math.inf)


def keep_typical(mass: float, scores: Tensor) -> Tensor:
    """Keeps the tokens whose surprise is nearest the entropy until they hold ``mass``: `TypicalLogitsWarper`.

    Tokens as surprising as the last one needed are kept too, so the order among equals does not matter.
    """
    logs = scores.log_softmax(0)
    probabilities = logs.exp()
    distance = (-logs + (logs * probabilities).nansum()).abs()  # [V], nats between surprise and entropy
    if _on_cpu_and_finite(scores):
        values = distance.numpy()
        for nats in _TYPICAL_LOOKS_NATS:
            near = np.flatnonzero(values <= nats)
            order = near[np.argsort(values[near], kind="stable")]
            held = np.cumsum(probabilities.numpy()[order].astype(np.float64))
            last = int(np.searchsorted(held, mass))
            if last >= len(order):
                continue
            before = held[last - 1] if last else 0.0
            if min(held[last] - mass, mass - before) < _DOUBT:
                break
            return _only(scores, near[values[near] <= values[order[last]]])
    ordered, ids = torch.sort(distance, stable=True)
    reached = int((scores[ids].softmax(0).cumsum(0) < mass).sum())
    border = ordered[min(reached, len(ordered) - 1)]
    return scores.masked_fill(distance > border, -math.inf)


def _on_cpu_and_finite(scores: Tensor) -> bool:
    """Whether the quick look applies: a best score of NaN or infinity is left to the definition, which passes it on."""
    return scores.device.type == "cpu" and math.isfinite(float(scores.amax()))


def _near_the_top(values: NDArray[Any]) -> Iterator[NDArray[np.intp]]:
    """Yields ever larger sets of ids, ascending: all scores within so many nats of the best."""
    best = values.max()
    for nats in _LOOKS_NATS:
        yield np.flatnonzero(values >= best - nats)


def _only(scores: Tensor, kept: NDArray[np.intp]) -> Tensor:
    """``scores`` at the ids in ``kept``, minus infinity elsewhere."""
    result = torch.full_like(scores, -math.inf)
    ids = torch.from_numpy(kept)
    result[ids] = scores[ids]
    return result
