"""From what a user hands in to a target and a drafter: models are wrapped, what is ready is taken as it is."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ..draft.protocol import Drafter
from ..draft.registry import check_drafter_name, make_drafter
from ..target.huggingface import HuggingFaceTarget
from ..target.native import NativeTarget, is_worth_while
from ..target.protocol import Target
from ..target.quantised import check_weights
from ..target.sharded import is_sharded
from ..target.support import UnsupportedModel
from ..warning import BranchwiseWarning

#: what may run a model: transformers itself; this library's own C or OpenVINO, on a CPU; or the first of these that can
ENGINES = ("transformers", "native", "openvino", "auto")
_COMPILED = ("native", "openvino")


def as_target(model: Any, engine: str = "transformers", weights: str | None = None) -> Target:
    """The target for ``model``.

    Args:
        model: a transformers model, or a target.
        engine: what runs it, one of `ENGINES`.
        weights: their format in a compiled engine: "f32", "bf16", "int8" or "int4"; the model's own if absent.

    Raises:
        ValueError: an engine or a format is not known, or does not go with the others; or the weights are spread over
            processes, which one process alone cannot run.
        ImportError: the engine is not installed; names the extra.
        NativeUnavailable: the native engine was asked for and there is no C compiler.
        UnsupportedModel: the model cannot be kept exact.
        TypeError: it is neither a transformers model nor a target; says what to give instead.
    """
    check_engine(engine, weights)
    if isinstance(model, PreTrainedModel):
        if is_sharded(model):
            raise ValueError(
                "the model's weights are spread over several processes: on process 0 wrap it in "
                "branchwise.target.ShardedTarget, on the others call branchwise.target.follow(model)"
            )
        return HuggingFaceTarget(model) if engine == "transformers" else _compiled(model, engine, weights)
    if isinstance(model, torch.nn.Module):
        inner = "its .merge_and_unload()" if hasattr(model, "merge_and_unload") else "the model inside it"
        inner = "its ._orig_mod" if hasattr(model, "_orig_mod") else inner
        raise TypeError(f"{type(model).__name__} is no transformers PreTrainedModel but a wrapper; give {inner}")
    if not hasattr(model, "prefill"):
        raise TypeError(
            f"the model must be a loaded transformers model or a Target, got {type(model).__name__}; "
            "load it with AutoModelForCausalLM.from_pretrained or branchwise.hub.load"
        )
    if engine != "transformers":
        raise ValueError(f"engine={engine!r} is for models; what was given is a {type(model).__name__}, ready to run")
    return model


def check_engine(engine: str, weights: str | None) -> None:
    """Raises ValueError for engines and formats that do not exist or do not go together."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if weights is not None:
        if engine not in _COMPILED:
            raise ValueError(
                f"weights={weights!r} goes with engine='native' or 'openvino'; {engine!r} takes the model as loaded"
            )
        check_weights(weights)
    if engine == "openvino":
        # the package takes a while to import, and most runs do without; where it is missing, this says so
        from ..target import openvino  # noqa: F401


def _compiled(model: PreTrainedModel, engine: str, weights: str | None) -> Target:
    if engine == "native" or (engine == "auto" and is_worth_while()):
        try:
            return NativeTarget(model, weights=weights)
        except UnsupportedModel as error:
            return _else_transformers(model, engine, error)
    try:
        from ..target.openvino import OpenVinoTarget

        return OpenVinoTarget(model, weights=weights)
    except (UnsupportedModel, ImportError) as error:
        return _else_transformers(model, engine, error)


def _else_transformers(model: PreTrainedModel, engine: str, error: Exception) -> Target:
    if engine != "auto":
        raise error
    warnings.warn(f"engine 'auto' takes transformers: {error}", BranchwiseWarning, stacklevel=5)
    return HuggingFaceTarget(model)


def drafter_for(target: Target, tokenizer: Any, drafter: str | Drafter, options: Mapping[str, Any] | None) -> Drafter:
    """The drafter that was asked for; one with a draft model is told the target's tokenizer and device.

    Raises:
        ValueError: no drafter has that name, or it takes other options.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"drafter_options must be a dictionary such as {{'draft_model': ...}}, got {options!r}")
    given = dict(options or {})
    if isinstance(drafter, str):
        check_drafter_name(drafter, with_model="draft_model" in given)
    if "draft_model" in given:
        given.setdefault("target_tokenizer", tokenizer)
        if isinstance(given["draft_model"], (str, os.PathLike)):
            given.setdefault("device", target.device)
    return make_drafter(drafter, target=target, **given)
