"""Whether products in bfloat16 are faster here than in float32: measured once, then kept with the training."""

from __future__ import annotations

import time

import torch
from torch.nn.functional import linear

#: a layer of a small head on one batch
SHAPE = (1024, 576, 2304)
ROUNDS = 5
#: so much faster it must be: less is noise
GAIN = 1.15


def bfloat16_is_faster(device: torch.device) -> bool:
    """Times one linear layer forward in both types; a graphics card is taken to be made for bfloat16."""
    if device.type != "cpu":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    rows, width, wide = SHAPE
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        inputs, weight = torch.ones(rows, width, dtype=dtype), torch.ones(wide, width, dtype=dtype)
        linear(inputs, weight)
        times = []
        for _ in range(ROUNDS):
            began = time.thread_time()
            linear(inputs, weight)
            times.append(time.thread_time() - began)
        seconds[dtype] = min(times)
    return seconds[torch.float32] > GAIN * seconds[torch.bfloat16]
