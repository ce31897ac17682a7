"""From one GGUF file to a folder that transformers loads: safetensors in bfloat16, tokenizer, generation config.

Why bfloat16. A GGUF weight is a small integer times a float16 scale (plus a float16 offset), worked out in float32.
That product has more bits than bfloat16 holds, so rounding does change values: about four in five of them, each by at
most 2^-8 of itself (0.4 %). That is far below the error that quantisation to 4 to 8 bits has already made, bfloat16 is
what these models were published in, and it halves disk, memory and time per token. The converted folder *is* the model
from then on: whoever compares two ways of decoding loads the same folder for both. A runtime that multiplies the
quantised blocks directly computes slightly different numbers, and the greedy texts of the two may part.

What the GGUF reader loses and is put back here: further stop tokens, digit splitting, the tokenizer's length limit and
its special tokens.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from branchwise.hub.named_models import NamedModel

_NEEDED_MODULES = ("gguf", "accelerate")


def check_can_convert(model: NamedModel) -> None:
    """Raises early, before anything is downloaded, if what conversion needs is absent.

    Raises:
        ImportError: names the absent packages and the extra that brings them, or the transformers that is too old.
    """
    absent = [module for module in _NEEDED_MODULES if importlib.util.find_spec(module) is None]
    if absent:
        raise ImportError(
            f'converting a fetched model needs {" and ".join(absent)}: run `pip install "branchwise[hub]"`'
        )
    if model.needs_gguf_config:
        import transformers

        if not hasattr(transformers, "GgufConfig"):
            raise ImportError(
                f"transformers {transformers.__version__} reads the tokenizer of {model.name} wrongly: convert it with "
                "a newer one that has GgufConfig (`pip install -U transformers`); the converted folder loads here too"
            )


def convert_gguf(gguf: Path, folder: Path, model: NamedModel) -> None:
    """Writes a transformers folder for a GGUF file.

    Args:
        gguf: the file; only its own folder is looked into, never the network.
        folder: an existing empty folder.
        model: says what the file alone does not.
    """
    check_can_convert(model)
    with _quiet_transformers():
        network = _read_network(gguf)
        tokenizer = _read_tokenizer(gguf, model)
        _agree_with_network(tokenizer, network.config)
        network.generation_config = _generation_config(network, tokenizer, model)
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _read_network(gguf: Path) -> Any:
    import torch
    import transformers

    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # before that class existed, reading a GGUF file always dequantised it
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, local_files_only=True, **options
    )


def _read_tokenizer(gguf: Path, model: NamedModel) -> Any:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    tokenizer.init_kwargs.pop("local_files_only", None)  # true of this call, not of the folder
    if model.splits_digits:
        from tokenizers import decoders, pre_tokenizers

        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()  # older readers add steps that alter spaces
    return tokenizer


def _agree_with_network(tokenizer: Any, config: Any) -> None:
    """Gives the tokenizer the special tokens and the length limit of the network (older readers mix them up)."""
    for role in ("bos", "eos", "pad"):
        setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(getattr(config, f"{role}_token_id")))
    tokenizer.clean_up_tokenization_spaces = False  # it would drop spaces from decoded text
    tokenizer.model_max_length = config.max_position_embeddings


def _generation_config(network: Any, tokenizer: Any, model: NamedModel) -> Any:
    """Greedy defaults with the model's own special tokens; sampling settings are the user's to choose."""
    import transformers

    stops = [network.config.eos_token_id, *tokenizer.convert_tokens_to_ids(list(model.extra_stop_tokens))]
    return transformers.GenerationConfig(
        bos_token_id=network.config.bos_token_id,
        pad_token_id=network.config.pad_token_id,
        eos_token_id=stops if len(stops) > 1 else stops[0],
    )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keeps transformers' bars out of ours, and leaves its setting as found.

    The bar of the GGUF reader has no switch: it is silenced by taking stderr away for the while. What goes wrong is
    raised, not printed.
    """
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        if was_on:
            logging.enable_progress_bar()
