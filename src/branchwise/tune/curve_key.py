"""What a cost curve belongs to: this processor, its threads, this torch, this model, number type and engine.

What a forward costs does not depend on the values of the weights, so the model is known by its configuration and the
size of its weights; hashing gigabytes at every start would cost more than the curve brings.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from ..target.protocol import Target

#: of a configuration: where it came from, not what it is
_VOLATILE = ("transformers_version", "name_or_path")


def curve_key(target: Target) -> dict[str, Any]:
    """The key, ready for JSON. Equal keys mean equal costs, as far as can be told without a forward.

    A target may name its ``engine`` (``"transformers"`` otherwise), and in ``cost_facts`` (a mapping ready for JSON)
    whatever else its costs depend on: the number type of compiled weights, an engine's own version and threads.
    """
    from .. import __version__

    model = getattr(target, "model", None)
    return {
        "engine": getattr(target, "engine", "transformers"),
        "device": _device_name(target.device),
        "cpu": cpu_model(),
        "logical_cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "branchwise": __version__,
        "target": type(target).__name__,
        "vocabulary": target.vocab_size,
        "dtype": str(getattr(model, "dtype", None)).removeprefix("torch."),
        "model": _config_digest(getattr(model, "config", None)),
        "weights": _weights(model),
        **getattr(target, "cost_facts", {}),
    }


def cpu_model() -> str | None:
    """The processor's name as Linux tells it, else what Python knows."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _config_digest(config: Any) -> str | None:
    if config is None:
        return None
    facts = {name: value for name, value in config.to_dict().items() if name not in _VOLATILE and name[0] != "_"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def _weights(model: Any) -> list[int] | None:
    """Numbers and bytes of all parameters."""
    if not isinstance(model, torch.nn.Module):
        return None
    sizes = [(parameter.numel(), parameter.numel() * parameter.element_size()) for parameter in model.parameters()]
    return [sum(column) for column in zip(*sizes, strict=True)]
