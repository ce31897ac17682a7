"""The folder of a trained head: its config, and its tensors, each of which must be accounted for.

Knows files, names, shapes and kinds of numbers. Does not know any head: whoever builds one takes the tensors it needs
by name and then calls `finish`, which refuses what was left.

    my-head/
      config.json
      model.safetensors                                      one file, or
      model.safetensors.index.json, model-0000*.safetensors  several, or
      pytorch_model.bin (its index), medusa_lm_head.pt       pickles, on request only

Matrices may be packed (see `packed`): they are taken as the numbers they stand for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .head_config import HeadCheckpointError, HeadConfig
from .packed import SCALE, packed_names, unpack_rows

CONFIG = "config.json"
#: names of single files, the first that exists is read; a lone file of the same kind may have any other name
SAFETENSORS = ("model.safetensors", "medusa_lm_head.safetensors")
PICKLES = ("pytorch_model.bin", "medusa_lm_head.pt")
INDEX = ".index.json"

Module = TypeVar("Module", bound=nn.Module)


class HeadCheckpoint:
    """An opened folder. Tensors are read when they are taken.

    Args:
        folder: the folder, with a ``config.json`` and weights.
        allow_pickle: read ``.bin`` and ``.pt`` files where there is no safetensors file. They are opened with torch's
            restricted unpickler, which is safer than a plain one but still has more to it than reading numbers.

    Raises:
        HeadCheckpointError: there is no such folder, or it holds no config or no weights, several of which could be
            meant, pickles only and ``allow_pickle`` is not set, or a damaged file.
    """

    def __init__(self, folder: str | os.PathLike[str], *, allow_pickle: bool = False) -> None:
        self.folder = Path(folder).expanduser()
        if not self.folder.is_dir():
            raise HeadCheckpointError(
                f"no folder {os.fspath(folder)!r} with a draft head in it; download the head first"
            )
        self.config = HeadConfig(_read_json(self.folder / CONFIG), f"{self.folder.name}/{CONFIG}")
        files = _weight_files(self.folder, allow_pickle)
        #: name -> the file that holds it
        self._file_of: dict[str, Path] = {}
        self._files: dict[Path, Mapping[str, Any]] = {}
        for path, expected in files.items():
            tensors = _open_file(path)
            if expected is not None and expected != set(tensors):
                differing = ", ".join(sorted(expected ^ set(tensors))[:5])
                raise HeadCheckpointError(f"{self._shown(path)} does not hold the tensors its index lists: {differing}")
            self._files[path] = tensors
            self._file_of |= dict.fromkeys(tensors, path)
        self._taken: set[str] = set()
        self._packed = packed_names(self._file_of)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors in the folder, without the scales of packed ones."""
        scales = {f"{name}{SCALE}" for name in self._packed}
        return tuple(name for name in self._file_of if name not in scales)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without taking it.

        Raises:
            HeadCheckpointError: there is no such tensor.
        """
        return self._tensor(name)[0]

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of the checkpoint as ``dtype``, in memory of its own.

        Raises:
            HeadCheckpointError: it is missing, of another shape, integers where floats are expected or the other way
                round, or it holds a number that is not finite.
        """
        found, read = self._tensor(name)
        where = f"tensor {name!r} of {self._shown(self._file_of[name])}"
        if found != tuple(shape):
            raise HeadCheckpointError(f"{where} has shape {list(found)}, its config asks for {list(shape)}")
        try:
            tensor = read()
        except (SafetensorError, RuntimeError, OSError) as error:
            raise HeadCheckpointError(f"{where} cannot be read, the file is damaged: {error}") from error
        if name in self._packed:
            tensor = self._unpacked(name, tensor, where)
        if tensor.is_floating_point() != dtype.is_floating_point or (tensor.dtype is torch.bool) != (
            dtype is torch.bool
        ):
            raise HeadCheckpointError(f"{where} holds {tensor.dtype}, expected {dtype} or another of its kind")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise HeadCheckpointError(f"{where} holds numbers that are not finite: the file is damaged")
        self._taken.add(name)
        return tensor.to(dtype, copy=True)

    def _unpacked(self, name: str, values: Tensor, where: str) -> Tensor:
        if values.dtype is not torch.int8:
            raise HeadCheckpointError(f"{where} has a scale beside it but holds {values.dtype}, expected torch.int8")
        # as many scales as rows
        scale = self.take(f"{name}{SCALE}", (len(values),), torch.float32)
        return unpack_rows(values, scale)

    def skip(self, name: str) -> None:
        """Counts a tensor as accounted for without reading it: one that is known to repeat what is known already."""
        self._taken.add(name)

    def fill(self, module: Module, rename: Callable[[str], str] = str) -> Module:
        """Takes every parameter and persistent buffer of ``module`` from the checkpoint.

        Args:
            module: from `blank`.
            rename: the module's own names to those in the checkpoint.
        """
        for own, slot in module.state_dict().items():
            slot.copy_(self.take(rename(own), tuple(slot.shape), slot.dtype))
        return module

    def finish(self) -> None:
        """Refuses tensors that nobody took.

        Raises:
            HeadCheckpointError: names them and their files.
        """
        left = [name for name in self._file_of if name not in self._taken]
        if left:
            shown = ", ".join(f"{name!r} {list(self.shape(name))}" for name in left[:8])
            more = f" and {len(left) - 8} more" if len(left) > 8 else ""
            raise HeadCheckpointError(
                f"{self._shown(self._file_of[left[0]])} holds tensors that this head has no place for: {shown}{more}"
            )

    def _tensor(self, name: str) -> tuple[tuple[int, ...], Callable[[], Tensor]]:
        if name not in self._file_of:
            files = ", ".join(self._shown(path) for path in self._files)
            raise HeadCheckpointError(f"{files} lacks the tensor {name!r}, which this head needs")
        held = self._files[self._file_of[name]][name]
        if isinstance(held, Tensor):
            return tuple(held.shape), lambda: held
        return tuple(held.get_shape()), lambda: held[...]

    def _shown(self, path: Path) -> str:
        return f"{self.folder.name}/{path.name}"


def blank(build: Callable[[], Module], dtype: torch.dtype, device: torch.device | str = "cpu") -> Module:
    """A module whose parameters are all NaN, so that one that is never loaded shows in every output.

    Args:
        build: makes the module; it runs on the meta device, so no time goes into random weights.
        dtype: of all floating-point parameters.
        device: where they go.
    """
    with torch.device("meta"):
        module = build().to(dtype)
    module.to_empty(device=device)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    return module


def _kind(dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "integer"


def _read_json(path: Path) -> dict[str, Any]:
    shown = f"{path.parent.name}/{path.name}"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeadCheckpointError(f"{path.parent.name} holds no {path.name}, so it is no draft head") from None
    except ValueError as error:  # not JSON, or not text at all
        raise HeadCheckpointError(f"{shown} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise HeadCheckpointError(f"{shown} must hold one JSON object, got a {type(values).__name__}")
    return values


def _weight_files(folder: Path, allow_pickle: bool) -> dict[Path, set[str] | None]:
    """The files with weights; for those of an index also the names that it says they hold."""
    files = _files_of_kind(folder, SAFETENSORS, (".safetensors",))
    if files:
        return files
    pickles = _files_of_kind(folder, PICKLES, (".bin", ".pt", ".pth"))
    if not pickles:
        raise HeadCheckpointError(f"{folder.name} holds no weights: neither safetensors nor .bin or .pt files")
    if not allow_pickle:
        raise HeadCheckpointError(
            f"{folder.name} has its weights in a pickle ({next(iter(pickles)).name}), it may hold more than numbers; "
            "pass allow_pickle=True if you trust where it comes from, or convert it to safetensors"
        )
    return pickles


def _files_of_kind(folder: Path, known: tuple[str, ...], endings: tuple[str, ...]) -> dict[Path, set[str] | None]:
    for name in known:
        if (folder / f"{name}{INDEX}").is_file():
            return _sharded(folder, f"{name}{INDEX}")
    for name in known:
        if (folder / name).is_file():
            return {folder / name: None}
    others = sorted(path for path in folder.iterdir() if path.suffix in endings and path.is_file())
    if len(others) > 1:
        names = ", ".join(path.name for path in others)
        raise HeadCheckpointError(f"{folder.name} holds several files of weights and no index: {names}")
    return dict.fromkeys(others)


def _sharded(folder: Path, index: str) -> dict[Path, set[str] | None]:
    weight_map = HeadConfig(_read_json(folder / index), f"{folder.name}/{index}").take("weight_map", dict)
    files: dict[Path, set[str] | None] = {}
    for name, file in weight_map.items():
        # an index comes with the download: it may point at nothing but its neighbours
        if not isinstance(file, str) or Path(file).name != file or not (folder / file).is_file():
            raise HeadCheckpointError(f"{folder.name}/{index} puts {name!r} into {file!r}, which is no file beside it")
        names = files.setdefault(folder / file, set())
        assert names is not None
        names.add(name)
    return files


def _open_file(path: Path) -> Mapping[str, Any]:
    """Name -> tensor, or a slice of the file that becomes one."""
    shown = f"{path.parent.name}/{path.name}"
    if path.suffix == ".safetensors":
        try:
            handle = safe_open(path, framework="pt", device="cpu")
            return {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 - no mapping, just keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise HeadCheckpointError(f"{shown} is damaged or no safetensors file: {error}") from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may fail in any way
        raise HeadCheckpointError(f"{shown} is damaged or holds more than tensors: {error}") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise HeadCheckpointError(f"{shown} must hold tensors by name, got a {type(tensors).__name__}")
    return {str(name): tensor for name, tensor in tensors.items()}
