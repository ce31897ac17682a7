"""Which checkpoint a loaded model is, told in some milliseconds: a short checksum of a sample of all its parameters.

Knows parameters. Values are rounded to bfloat16 first, so that a checkpoint has one fingerprint whether it is loaded in
float32 or in bfloat16 (float16 loses small values, and so has another).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

#: values that are looked at in each parameter, evenly spaced over it
SAMPLES = 1024


def fingerprint(model: nn.Module) -> str | None:
    """16 hexadecimal digits over names, shapes and a sample of the values of every parameter.

    Training touches every matrix it trains almost everywhere, and merging an adapter does too: a fine-tuned model has
    another fingerprint than its base. One that differs in single rows of one matrix may have the same; so it is good
    for choosing a drafter, whose faults cost speed only, and not for a proof.

    Returns:
        None where there are parameters without values in reach (offloaded to a disk, or not loaded yet).
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        return None
    return checksum(model, _sample)


def checksum(model: nn.Module, chosen: Callable[[Tensor], Tensor]) -> str:
    """16 hexadecimal digits over names, shapes and what is ``chosen`` of the values of every parameter, in bfloat16."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {list(parameter.shape)}".encode())
        values = chosen(parameter.detach()).to(torch.bfloat16).contiguous().cpu()
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _sample(values: Tensor) -> Tensor:
    flat = values.reshape(-1)
    # an odd step, so that the places move through the columns of a matrix whose width is even
    return flat[:: max(1, len(flat) // SAMPLES) | 1]
