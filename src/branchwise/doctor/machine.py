"""The machine as torch sees it: processor, memory, GPU, and the attention kernels that can run on it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec

import torch

from ..attention.native import native
from ..bench.provenance import cpu_model
from ..hub.place import dtype_warning
from .finding import Finding


def machine() -> Iterator[Finding]:
    """Findings about hardware and kernels; compiles the CPU kernel if that was not done yet (about two seconds)."""
    yield processor()
    yield bfloat16()
    yield gpu()
    yield cpu_kernel()
    yield gpu_kernel()


def processor() -> Finding:
    """Processor, threads and memory."""
    name = cpu_model() or platform.machine() or "unknown processor"
    memory = memory_gigabytes()
    room = "" if memory is None else f", {memory:.1f} GB of memory"
    return Finding(
        "processor", "ok", f"{name}: {os.cpu_count()} logical cores, torch uses {torch.get_num_threads()} threads{room}"
    )


def bfloat16() -> Finding:
    """Whether torch multiplies bfloat16 on this processor."""
    if dtype_warning(torch.bfloat16, torch.device("cpu")) is None:
        return Finding("bfloat16", "ok", "torch multiplies it on this processor")
    says = "not multiplied by this processor, and very slow in torch: take --engine auto, or --dtype float32"
    return Finding("bfloat16", "absent", says)


def memory_gigabytes() -> float | None:
    """All memory of the machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (AttributeError, ValueError, OSError):
        return None


def gpu() -> Finding:
    """The GPUs that this torch can use."""
    if not torch.cuda.is_available():
        build = torch.version.cuda or torch.version.hip
        why = "this torch is built for CPUs only" if build is None else f"torch is built for {build} but sees none"
        return Finding("GPU", "absent", f"{why}; models run on the CPU")
    names = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        names.append(f"cuda:{number} {properties.name} ({properties.total_memory / 1e9:.0f} GB)")
    return Finding("GPU", "ok", f"{', '.join(names)}; used with --device cuda")


def cpu_kernel() -> Finding:
    """Whether tree attention in C is compiled."""
    found = native()
    if found.library is not None:
        return Finding("CPU kernel", "ok", found.reason)
    return Finding(
        "CPU kernel",
        "absent",
        f"{found.reason}; long contexts are slower without it: install a C compiler with OpenMP, or name one in $CC",
    )


def gpu_kernel() -> Finding:
    """Whether tree attention in Triton can be used."""
    if not torch.cuda.is_available():
        return Finding("GPU kernel", "absent", "not needed without a GPU")
    if find_spec("triton") is None:
        return Finding("GPU kernel", "absent", "torch's own is used; faster: pip install 'branchwise[triton]'")
    return Finding("GPU kernel", "ok", "Triton, compiled on first use")
