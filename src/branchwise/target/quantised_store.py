"""Quantised weights on disk, so that a model is quantised once.

    <root>/engines/KEY/weights.safetensors     values, zeros and scales of every matrix
    <root>/engines/KEY/engine.json             what they were made from, and the checksum of the file beside it

The key is a hash of every weight, of the format and of the version of the code that quantises: another checkpoint, or
other code, never meets these files. A folder appears complete, by renaming. One that does not hold what its checksum
says is named in a warning, removed and made anew. Knows files; the numbers are `quantised`' business.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..hub.cache_folder import CacheFolder
from ..hub.wheel import file_sha256
from ..warning import BranchwiseWarning
from .decoder_parts import Decoder
from .quantised import Quantised, quantise

#: raised when `quantised` starts to make other numbers of the same weights
VERSION = 2
_WEIGHTS, _RECORD = "weights.safetensors", "engine.json"
_PARTS = ("values", "zero", "scale")


#: formats whose matrices are kept as they are, rounded to a type
FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16}


def kept_matrices(
    decoder: Decoder, weights: str, cache_dir: str | os.PathLike[str] | None = None
) -> Mapping[str, Quantised] | torch.dtype:
    """As `quantised_weights`; for a format of `FLOATS` its type, in which the decoder's own matrices are taken."""
    return FLOATS.get(weights) or quantised_weights(decoder, weights, cache_dir)


def quantised_weights(
    decoder: Decoder, weights: str, cache_dir: str | os.PathLike[str] | None = None
) -> dict[str, Quantised]:
    """The matrices of a decoder by name, from the disk if they are there, else quantised and kept there.

    Args:
        decoder: whose matrices.
        weights: "int8" or "int4".
        cache_dir: the cache root, as for `branchwise.hub`.
    """
    folder = CacheFolder.locate(cache_dir).root / "engines" / weights_key(decoder, weights)
    if folder.exists():
        try:
            return _read(folder)
        except _Damaged as fault:
            warnings.warn(f"{folder} is damaged ({fault}); it is made anew", BranchwiseWarning, stacklevel=2)
            shutil.rmtree(folder, ignore_errors=True)
    matrices = {name: quantise(linear.weight, weights, is_head=name == "head") for name, linear in decoder.linears()}
    try:
        _write(folder, matrices, weights)
    except OSError as error:
        message = f"the quantised weights could not be kept in {folder} ({error}); they will be made anew next time"
        warnings.warn(message, BranchwiseWarning, stacklevel=2)
    return matrices


def weights_key(decoder: Decoder, weights: str) -> str:
    """A name for these weights in this format: 32 hexadecimal digits, the format and the version."""
    digest = hashlib.sha256()
    for name, linear in decoder.linears():
        digest.update(f"{name} {linear.weight.dtype} {tuple(linear.weight.shape)}\n".encode())
        digest.update(_bytes_of(linear.weight))
    return f"{digest.hexdigest()[:32]}-{weights}-v{VERSION}"


def _bytes_of(weight: Tensor) -> memoryview:
    return weight.contiguous().view(torch.uint8).numpy().data


class _Damaged(Exception):
    """A folder does not hold what it says."""


def _read(folder: Path) -> dict[str, Quantised]:
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        if file_sha256(folder / _WEIGHTS) != record["sha256"]:
            raise _Damaged(f"{_WEIGHTS} does not have the checksum in {_RECORD}")
        tensors = load_file(folder / _WEIGHTS)
        names = dict.fromkeys(name.rpartition(".")[0] for name in tensors)
        return {name: Quantised(*(tensors[f"{name}.{part}"] for part in _PARTS)) for name in names}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _Damaged(f"{type(error).__name__}: {error}") from error


def _write(folder: Path, matrices: Mapping[str, Quantised], weights: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent, ignore_cleanup_errors=True) as making:
        made = Path(making) / "whole"
        made.mkdir()
        tensors = {f"{name}.{part}": getattr(q, part).contiguous() for name, q in matrices.items() for part in _PARTS}
        save_file(tensors, made / _WEIGHTS)
        record = {"sha256": file_sha256(made / _WEIGHTS), "weights": weights, "version": VERSION}
        (made / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        if not folder.exists():  # another process may have been quicker
            os.replace(made, folder)
