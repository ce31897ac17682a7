"""Which checkpoint a loaded model is, told in some milliseconds: a short checksum of a sample of all its parameters.

Knows parameters. Values are rounded to bfloat16 first, so that a checkpoint has one fingerprint whether it is loaded in
float32 or in bfloat16 (float16 loses small values, and so has another).
"""

from __future__ import annotations

import hashlib

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
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if parameter.is_meta:
            return None
        digest.update(f"{name} {list(parameter.shape)}".encode())
        digest.update(_sample(parameter.detach()))
    return digest.hexdigest()[:16]


def _sample(values: Tensor) -> bytes:
    flat = values.reshape(-1)
    # an odd step, so that the places move through the columns of a matrix whose width is even
    step = (max(1, len(flat) // SAMPLES)) | 1
    sample = flat[::step].to(torch.bfloat16).contiguous().cpu()
    return sample.view(torch.uint8).numpy().tobytes()
