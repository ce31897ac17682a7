"""Ray on a small machine: two CPUs, no dashboard, no telling."""

from __future__ import annotations

#: further arguments of ``ray.init``
SMALL = {"num_cpus": 2, "object_store_memory": 80 * 2**20}


def own_processes(mark: str) -> list:
    """Processes of the cluster that this process started whose title holds a mark, as `psutil` gives them."""
    import psutil

    children = psutil.Process().children(recursive=True)
    return [child for child in children if any(mark in word for word in _title(child))]


def _title(process) -> list[str]:
    import psutil

    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []
