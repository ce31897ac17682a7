"""Words for how weights are kept and where: names of number types and of devices.

Knows torch, and that it answers a wrong device with a page of names. Knows no model.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", "float64")


def dtype_named(name: str) -> torch.dtype | str:
    """torch's number type of that name; ``"auto"``, the checkpoint's own, stays a word.

    Raises:
        ValueError: no weights are kept in a type of that name; names those that there are.
    """
    import torch

    if name != "auto" and name not in DTYPES:
        raise ValueError(f"no dtype is named {name!r}; there are auto, {', '.join(DTYPES)}")
    return name if name == "auto" else getattr(torch, name)


def dtype_warning(dtype: torch.dtype, device: torch.device) -> str | None:
    """A sentence when torch has no matrix products in a dtype for this processor, else None.

    For bfloat16 on x86 these need AVX512; without it torch computes number by number, hundreds of times as slowly as in
    float32.
    """
    import torch

    if dtype != torch.bfloat16 or device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return None
    if "AVX512" in torch.backends.cpu.get_cpu_capability():
        return None
    return (
        "the model is in bfloat16, which this processor does not multiply: torch takes many times as long as in "
        "float32. Take --engine auto, or --dtype float32"
    )


def check_device(device: torch.device | str | int) -> None:
    """Raises ValueError when torch cannot put a tensor there."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {str(device)!r} cannot be used here: {_reason(str(error))}") from None


def _reason(text: str) -> str:
    if "device type at start of device string" in text:
        return "torch knows no device of that name; write cpu, cuda, cuda:1, mps or xpu"
    if "Could not run" in text:
        return "this torch was built without it; choose cpu, or install the torch that is made for it"
    return text.strip().splitlines()[0]
