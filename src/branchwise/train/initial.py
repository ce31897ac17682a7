"""Where a head's training begins: what can be taken over from the target, the rest small and random.

Reads the target; changes only the new head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

#: the target's final norm is taken over with its gains reduced to this: a head that knows nothing yet should not be
#: sure of anything (measured with a prototype: a third of the first loss, and lower losses from then on)
NORM_GAIN = 0.35


def target_norm_gains(model: PreTrainedModel) -> Tensor:
    """Gains ``[h]`` of the target's final norm, float32, whatever its formula; ones where it has none that is found."""
    weight = model.get_output_embeddings().weight
    width = int(model.config.get_text_config().hidden_size)
    norm = getattr(model.base_model, "norm", None)
    if isinstance(norm, nn.Module):
        with torch.no_grad():
            # a root-mean-square norm of ones is its gains
            gains = norm(torch.ones(1, width, dtype=weight.dtype, device=weight.device))[0].float().cpu()
        if float(gains.abs().max()) > 0:
            return gains
    return torch.ones(width)


def start_norm(norm: nn.Module, model: PreTrainedModel) -> None:
    """Sets a head's final norm."""
    weight = norm.weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        weight.copy_(NORM_GAIN * target_norm_gains(model))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """For making a module: the same random weights for the same seed, and torch's own generator left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
