"""From what a user writes after `--model` to a model and a tokenizer in memory.

Knows how a word is read (registered name, folder, Hub id). How a folder is loaded is transformers' business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from branchwise.hub.errors import TokenizerMissing, UnknownModel
from branchwise.hub.fetch import fetch
from branchwise.hub.load_errors import LOAD_ERRORS, check_whole, explained
from branchwise.hub.named_models import find_named_model, near_names, unknown_name_message
from branchwise.hub.place import check_device, dtype_named
from branchwise.hub.progress import Progress

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def resolve(
    name_or_path: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
    offline: bool | None = None,
) -> str:
    """Turns a name into what `from_pretrained` takes.

    A registered name ("default", "gemma-3-270m", ...) is fetched if need be and becomes its local folder; it wins over
    a folder of the same name, which can be written with a leading "./". An existing folder stays itself. Anything else
    is passed on as a Hub id.

    Raises:
        UnknownModel: nothing, a file, a path that is no folder, or a word without a slash that looks like a slip of a
            registered name.
        ModelNotFetched: a registered model that is absent and cannot be downloaded now.
    """
    word = os.fspath(name_or_path)
    if not word.strip():
        raise UnknownModel("the name of the model is empty; give a folder, a short name or a Hub id")
    if find_named_model(word) is not None:
        return str(fetch(word, cache_dir=cache_dir, progress=progress, offline=offline))
    if Path(word).is_dir():
        return word
    if Path(word).is_file():
        raise UnknownModel(f"{word!r} is a file; give the folder that holds it, with a config.json and a tokenizer")
    if Path(word).is_absolute() or word.startswith(("./", "../", "~")):
        raise UnknownModel(f"there is no folder {word!r}; give a folder with a config.json, a short name or a Hub id")
    if "/" not in word and os.sep not in word and near_names(word):
        raise UnknownModel(f"{unknown_name_message(word)} (A Hub id is written owner/name, a folder ./name.)")
    return word


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
    offline: bool | None = None,
    placement: Mapping[str, Any] | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a causal language model in evaluation mode, and its tokenizer.

    Args:
        name_or_path: as for `resolve`.
        dtype: of the weights, a torch dtype or its name; default the checkpoint's own (bfloat16 for the named models).
        device: where to put the model; default where transformers puts it (the CPU).
        cache_dir: as for `fetch`.
        progress: as for `fetch`.
        offline: as for `fetch`.
        placement: further arguments of `from_pretrained` that say where weights go; excludes ``device``.

    Raises:
        TokenizerMissing: the model loads but has no tokenizer beside it.
        UnknownModel, ModelNotFetched: as for `resolve`.
        ModelNotFound: a folder without a model, or a Hub id that cannot be had.
        ModelNotLoadable: the model is of another kind, or of an architecture that this transformers does not know; or
            its weights are damaged, or lack what would otherwise be left at random values.
        ValueError: torch has no such dtype, or cannot use the device.
    """
    import transformers

    chosen = "auto" if dtype is None else dtype_named(dtype) if isinstance(dtype, str) else dtype
    if device is not None:
        check_device(device)

    place = resolve(name_or_path, cache_dir=cache_dir, progress=progress, offline=offline)
    try:
        # a tensor of another shape is told by name below, where transformers would only say that there is one
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            place,
            dtype=chosen,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **(placement or {}),
        )
    except LOAD_ERRORS as error:
        told = explained(place, error)
        if told is None:
            raise
        raise told from error
    check_whole(place, report)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TokenizerMissing(
            f"{place} holds a model but no tokenizer that transformers can load; save one beside it with "
            f"tokenizer.save_pretrained({place!r})"
        ) from error
    if device is not None:
        model = model.to(device)
    return model.eval(), tokenizer
