"""Compiles a kernel in C for the very processor, once per machine, and loads it.

Knows the compiler and the cache folder. Does not know what a kernel computes: its sources lie in the folder of whoever
calls it. The C compiler is the machine's (``$CC``, cc, gcc or clang; a second or two), and the result is kept in the
cache folder under a name that changes with the sources, the compiler and the processor. Without a compiler there is no
kernel, and the caller does without.

Threads are torch's: both use the same OpenMP library, which torch has loaded by then.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

_SHARED = Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")


@dataclass(frozen=True)
class Kernel:
    """A kernel, if there is one.

    Attributes:
        library: the compiled file; None where there is none.
        reason: what there is to say about it, or why there is none.
    """

    library: ctypes.CDLL | None
    reason: str


def load_kernel(source: Path, *included: Path, flags: Sequence[str] = ()) -> Kernel:
    """Compiles ``source`` if need be, and loads it.

    Args:
        source: the one file to compile; it may include its neighbours and the headers beside this file.
        included: other folders that it includes from.
        flags: for the compiler, behind the usual ones.
    """
    folders = (_SHARED, *included)
    names = [name for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name]
    compiler = next((path for path in map(shutil.which, names) if path), None)
    if compiler is None:
        return Kernel(None, "there is no C compiler (cc, gcc or clang)")
    from ..hub.cache_folder import CacheFolder

    try:
        path = CacheFolder.locate().root / "native" / f"{_fingerprint(compiler, [source.parent, *folders], flags)}.so"
        if not path.exists():
            _compile(compiler, source, folders, flags, path)
        return Kernel(ctypes.CDLL(str(path)), "compiled for this processor")
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return Kernel(None, f"compiling it failed: {' '.join(detail.split())[:300]}")


def _fingerprint(compiler: str, folders: Sequence[Path], flags: Sequence[str]) -> str:
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True, timeout=20).stdout
    sources = [file.read_text(encoding="utf-8") for folder in folders for file in sorted(folder.glob("*.[ch]"))]
    digest = hashlib.sha256()
    for part in (*sources, " ".join((*_FLAGS, *flags, *_torchs_openmp())), version, _processor()):
        digest.update(part.encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """What the compiler makes of ``-march=native``: the processor's name and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return " ".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _compile(compiler: str, source: Path, folders: Sequence[Path], flags: Sequence[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as folder:
        # another process may do the same at the same time: whoever is last puts an equal file in place
        fresh = Path(folder) / path.name
        includes = [f"-I{folder}" for folder in folders]
        command = [compiler, *_FLAGS, *flags, *includes, str(source), *_torchs_openmp(), "-lm", "-o", str(fresh)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        fresh.replace(path)


def _torchs_openmp() -> tuple[str, ...]:
    """Linker arguments for the OpenMP library that torch has loaded: a second one would fight it for the cores."""
    home = Path(torch.__file__).parent
    found = sorted((*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")))
    return ("-Wl,--as-needed", str(found[0])) if found else ()
