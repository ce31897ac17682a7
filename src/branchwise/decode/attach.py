"""From what a user hands in to a target and a drafter: models are wrapped, what is ready is taken as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ..draft.protocol import Drafter
from ..draft.registry import check_drafter_name, make_drafter
from ..target.huggingface import HuggingFaceTarget
from ..target.protocol import Target
from ..target.sharded import is_sharded


def as_target(model: Any) -> Target:
    """The target for ``model``.

    Raises:
        UnsupportedModel: the model cannot be kept exact.
        ValueError: its weights are spread over processes, which one process alone cannot run.
        TypeError: it is neither a transformers model nor a target; says what to give instead.
    """
    if isinstance(model, PreTrainedModel):
        if is_sharded(model):
            raise ValueError(
                "the model's weights are spread over several processes: on process 0 wrap it in "
                "branchwise.target.ShardedTarget, on the others call branchwise.target.follow(model)"
            )
        return HuggingFaceTarget(model)
    if isinstance(model, torch.nn.Module):
        inner = "its .merge_and_unload()" if hasattr(model, "merge_and_unload") else "the model inside it"
        inner = "its ._orig_mod" if hasattr(model, "_orig_mod") else inner
        raise TypeError(f"{type(model).__name__} is no transformers PreTrainedModel but a wrapper; give {inner}")
    if not hasattr(model, "prefill"):
        raise TypeError(
            f"the model must be a loaded transformers model or a Target, got {type(model).__name__}; "
            "load it with AutoModelForCausalLM.from_pretrained or branchwise.hub.load"
        )
    return model


def drafter_for(target: Target, tokenizer: Any, drafter: str | Drafter, options: Mapping[str, Any] | None) -> Drafter:
    """The drafter that was asked for; one with a draft model is told the target's tokenizer and device.

    Raises:
        ValueError: no drafter has that name, or it takes other options.
    """
    given = dict(options or {})
    if isinstance(drafter, str):
        check_drafter_name(drafter, with_model="draft_model" in given)
    if "draft_model" in given:
        given.setdefault("target_tokenizer", tokenizer)
        if not isinstance(given["draft_model"], PreTrainedModel):
            given.setdefault("device", target.device)
    return make_drafter(drafter, target=target, **given)
