"""The model of a worker that runs it through transformers, and what its numbers are called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .assignment import Assignment

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_with_torch(given: Assignment, model: str | None = None) -> tuple[PreTrainedModel, Any]:
    """Model and tokenizer, with torch set to the threads.

    Args:
        given: names model and dtype.
        model: another model, of the same dtype.
    """
    import torch
    from transformers.utils import logging

    from ...hub import load

    torch.set_num_threads(given.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return load(model or given.model, dtype=None if given.dtype == "auto" else given.dtype)


def dtype_name(model: PreTrainedModel) -> str:
    """``bfloat16`` and so on."""
    return str(model.dtype).removeprefix("torch.")


def gguf_of(given: Assignment) -> Path:
    """The file.

    Raises:
        ValueError: none belongs to this model.
    """
    if given.gguf is None:
        raise ValueError(f"{given.peer} reads GGUF files, and none is known for this model; name one with --gguf FILE")
    return Path(given.gguf)


def gguf_format(file: Path) -> str:
    """``Q4_1 GGUF`` and so on: how most of its weights are kept."""
    try:
        from gguf import GGUFReader, LlamaFileType
    except ImportError:
        return "GGUF"
    field = GGUFReader(file).get_field("general.file_type")
    return "GGUF" if field is None else f"{LlamaFileType(field.contents()).name.removeprefix('MOSTLY_')} GGUF"
