"""From what a user calls a draft model to a drafter: loaded, compared with the target's tokenizer, bridged if need be.

Knows names and tokenizers. Does not know what is drafted.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from transformers import PreTrainedModel

from ..hub import load
from ..target.compiled import CompiledTarget
from ..target.protocol import GrowingTarget, Target
from ..target.support import UnsupportedModel
from ..warning import BranchwiseWarning
from .small_model import SmallModelDrafter
from .text_bridge import TextBridge
from .vocabulary import disagreement


def small_model_drafter(
    draft_model: PreTrainedModel | GrowingTarget | str | os.PathLike[str] | None = None,
    *,
    target: Target | PreTrainedModel | None = None,
    draft_tokenizer: Any = None,
    target_tokenizer: Any = None,
    dtype: Any = None,
    device: Any = None,
    **options: Any,
) -> SmallModelDrafter | TextBridge:
    """A drafter from a small model, whatever its tokenizer.

    Args:
        draft_model: the model, or its name, folder or Hub id; or a target that runs it.
        target: whom it drafts for. If that is a compiled target, the model runs on the same engine, with weights in the
            format that was asked for there; or on transformers, with a warning, where the engine does not take it.
        draft_tokenizer: its tokenizer; one loaded by name brings its own.
        target_tokenizer: the target's. With both, the two are compared, and a model with another vocabulary drafts
            through text. Without either, the ids are taken to be shared.
        dtype: of a model loaded by name; the checkpoint's own by default.
        device: of a model loaded by name.
        options: of `SmallModelDrafter`.

    Raises:
        ValueError: no model, a tokenizer is missing, or an option does not fit.
        OSError: no such model.
    """
    if draft_model is None:
        raise ValueError(
            "drafter 'model' needs a small model: draft_model=... in Python, --draft-model NAME on the command line"
        )
    model: PreTrainedModel | GrowingTarget
    if isinstance(draft_model, (str, os.PathLike)):
        model, own_tokenizer = load(os.path.expanduser(draft_model), dtype=dtype, device=device)
        draft_tokenizer = own_tokenizer if draft_tokenizer is None else draft_tokenizer
    else:
        for name, value in (("dtype", dtype), ("device", device)):
            if value is not None:
                raise ValueError(f"{name}={value} is for a draft model given by name; this one is loaded already")
        model = draft_model
    if isinstance(model, PreTrainedModel):
        model = on_the_engine_of(target, model)
    if draft_tokenizer is None and target_tokenizer is None:
        return SmallModelDrafter(model, **options)
    if draft_tokenizer is None or target_tokenizer is None:
        missing = "draft_tokenizer" if draft_tokenizer is None else "target_tokenizer"
        raise ValueError(
            f"whether the draft model shares the target's token ids cannot be told without {missing}: give it (a "
            "Speculator with a tokenizer hands its own on as target_tokenizer)"
        )
    if disagreement(draft_tokenizer, target_tokenizer) is not None:
        return TextBridge(SmallModelDrafter(model, **options), draft_tokenizer, target_tokenizer)
    return SmallModelDrafter(model, tokenizer=draft_tokenizer, target_tokenizer=target_tokenizer, **options)


def on_the_engine_of(
    target: Target | PreTrainedModel | None, model: PreTrainedModel
) -> PreTrainedModel | CompiledTarget:
    """The draft model on a compiled target's engine; the model itself for other targets, and where it is refused."""
    if not isinstance(target, CompiledTarget):
        return model
    try:
        return target.beside(model)
    except UnsupportedModel as error:
        warnings.warn(f"the draft model runs on transformers: {error}", BranchwiseWarning, stacklevel=3)
        return model
