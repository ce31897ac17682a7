"""From what is handed in as a prompt to a tensor of token ids; what is none is answered with what to do instead.

Knows shapes and types. Knows no model: whether the ids lie in its vocabulary is asked later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_TOKENIZE = 'tokenizer(text, return_tensors="pt").input_ids'


def prompt_ids(given: Any) -> Tensor:
    """Token ids ``[B, L]``; one row may come without the batch dimension, and rows as lists of equal length.

    Raises:
        ValueError: it is text, a record of a tokenizer, of another shape or type, or empty; says what to give.
    """
    if _is_text(given):
        raise ValueError(f"input_ids must be token ids, got text ({_shown(given)}); give {_TOKENIZE}")
    if isinstance(given, Mapping):
        raise ValueError(
            f"input_ids must be token ids, got a {type(given).__name__} with {', '.join(map(str, given))}; hand it "
            "over with two stars: generate(**inputs)"
        )
    try:
        ids = torch.as_tensor(given)
    except (ValueError, TypeError, RuntimeError) as error:
        if isinstance(given, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in given):
            lengths = [len(row) for row in given]
            raise ValueError(
                f"the prompts have different lengths {lengths}; pad them: tokenizer(texts, padding=True, "
                'padding_side="left", return_tensors="pt")'
            ) from None
        raise ValueError(
            f"input_ids must be token ids, got a {type(given).__name__} ({error}); give {_TOKENIZE}"
        ) from None
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2:
        raise ValueError(f"input_ids must be [batch, length], got shape {list(ids.shape)}")
    if ids.numel() == 0:
        raise ValueError("the prompt is empty: give at least one token (for instance the tokenizer's bos token)")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"input_ids must be whole numbers, got {ids.dtype}")
    if ids.device.type == "meta":
        raise ValueError("input_ids lie on the device 'meta', which holds no numbers; put them on the model's device")
    return ids


def _is_text(given: Any) -> bool:
    if isinstance(given, (list, tuple)):
        return bool(given) and all(isinstance(row, str) for row in given)
    return isinstance(given, (str, bytes))


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else text[:57] + "..."
