"""Joining a Ray cluster, or starting one on this machine: without a dashboard, telling nobody about it."""

from __future__ import annotations

import logging
import os
from typing import Any


def connect(address: str | None, init: dict[str, Any] | None = None) -> bool:
    """Makes this process a driver, unless it is one.

    Args:
        address: of a running cluster; None starts one on this machine.
        init: further arguments of ``ray.init`` for one of this machine.

    Returns:
        whether a cluster was started.

    Raises:
        ConnectionError: there is no cluster at the address.
        ImportError: Ray is not installed.
    """
    require_ray()
    import ray

    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        return False
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING, **(init or {}))
    return True


def require_ray() -> None:
    """Raises ImportError, saying what to install, where Ray or a part of it is missing."""
    try:
        import ray.data
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{error.name or 'ray'} is missing; a cluster needs: pip install 'branchwise[ray]'") from None
