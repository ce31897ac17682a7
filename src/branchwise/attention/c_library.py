"""C of this library, compiled on first use by the C compiler of the machine for the very processor.

The compiler is ``$CC``, cc, gcc or clang. What it makes is kept in the cache folder under a name that changes with the
source, the compiler and the processor.

Threads are torch's: what is compiled here uses the OpenMP library that torch has loaded. Knows compilers and files.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")


class NotCompiled(Exception):
    """There is no compiler here, or it failed; the message says which."""


def load_c_library(main: Path, *included: Path) -> ctypes.CDLL:
    """Compiles a file if need be, and loads what came of it.

    Args:
        main: the file; others of its folder may be included by it.
        included: folders that it includes from, besides its own.

    Raises:
        NotCompiled: no compiler, or what it complained about.
    """
    names = [name for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name]
    compiler = next((path for path in map(shutil.which, names) if path), None)
    if compiler is None:
        raise NotCompiled("there is no C compiler (cc, gcc or clang)")
    from ..hub.cache_folder import CacheFolder

    command = [compiler, *_FLAGS, *(f"-I{folder}" for folder in included), str(main), *_torchs_openmp()]
    try:
        name = _fingerprint(compiler, [main.parent, *included])
        path = CacheFolder.locate().root / "native" / f"{name}.so"
        if not path.exists():
            _compile(command, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        raise NotCompiled(f"compiling it failed: {' '.join(detail.split())[:300]}") from error


def _fingerprint(compiler: str, folders: list[Path]) -> str:
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True, timeout=20).stdout
    digest = hashlib.sha256()
    sources = [file.read_text(encoding="utf-8") for folder in folders for file in sorted(folder.glob("*.[ch]"))]
    for part in (*sources, " ".join((*_FLAGS, *_torchs_openmp())), version, _processor()):
        digest.update(part.encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """What the compiler makes of ``-march=native``: the processor's name and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return " ".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _compile(command: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as folder:
        # another process may do the same at the same time: whoever is last puts an equal file in place
        fresh = Path(folder) / path.name
        subprocess.run([*command, "-o", str(fresh)], check=True, capture_output=True, text=True, timeout=120)
        fresh.replace(path)


def _torchs_openmp() -> tuple[str, ...]:
    """Linker arguments for the OpenMP library that torch has loaded: a second one would fight it for the cores."""
    home = Path(torch.__file__).parent
    found = sorted((*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")))
    return ("-Wl,--as-needed", str(found[0])) if found else ()
