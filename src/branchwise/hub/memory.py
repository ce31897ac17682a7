"""Whether weights fit into memory, said before they are read: a system without room ends the process unheard."""

from __future__ import annotations

from pathlib import Path


def memory_warning(folder: Path, free_bytes: int | None = None) -> str | None:
    """A sentence when the weights in ``folder`` are larger than the free memory, else None.

    Args:
        folder: of a model.
        free_bytes: free memory; asked of the system when None. Where it does not tell, nothing is said.
    """
    needed = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    free = free_memory_bytes() if free_bytes is None else free_bytes
    if free is None or needed <= free:
        return None
    return (
        f"the weights in {folder.name} have {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; the "
        "system may end this process. Take a smaller model, or a machine with more memory"
    )


def free_memory_bytes() -> int | None:
    """What new allocations can get without swapping, as Linux estimates it."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
