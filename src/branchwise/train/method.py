"""What a way of training a head is: the protocol between the loop and the kinds of heads.

Knows batches and losses; knows no head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .batches import Batch
from .disk import write_json, write_whole


@dataclass(frozen=True, eq=False)
class Losses:
    """What one batch gives.

    Attributes:
        total: scalar to be minimised, an average over positions (depths added with their weights).
        by_depth: the average loss of each depth, without its weight.
    """

    total: Tensor
    by_depth: tuple[float, ...]


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate of their own.

    Attributes:
        parameters: the tensors.
        scale: of the learning rate.
        decay: of the weights.
    """

    parameters: list[nn.Parameter]
    scale: float = 1.0
    decay: float = 0.0


class Method(Protocol):
    """One kind of head, ready to be trained."""

    name: str
    #: hidden states of the target that the head reads, besides the final one
    feature_layers: tuple[int, ...]
    #: tokens a draft can be deep
    depths: int

    @property
    def module(self) -> nn.Module:
        """The network that is trained."""
        ...

    def groups(self) -> Sequence[Group]:
        """All trainable parameters."""
        ...

    def losses(self, batch: Batch) -> Losses:
        """Of a training batch."""
        ...

    def hits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """For measuring: per depth, whether the head's first choice was the text's token at every measured anchor.

        Returns:
            bool ``[n, depths]`` and bool ``[n, depths]``: hits, and which of them exist (the text may end before).
        """
        ...

    def export(self, folder: Path) -> None:
        """Writes the head in its published layout."""
        ...


def acceptance(hits: Tensor, exists: Tensor) -> list[float]:
    """Per depth, the share of hits among anchors whose earlier depths all hit: what a chain would have accepted.

    ::

        hits  1 1 0      depth 1: 2 of 3      depth 2: 1 of 2      depth 3: 0 of 1
              1 0 1
              0 1 1
    """
    shares = []
    alive = torch.ones(len(hits), dtype=torch.bool, device=hits.device)
    for depth in range(hits.shape[1]):
        asked = alive & exists[:, depth]
        count = int(asked.sum())
        shares.append(int((asked & hits[:, depth]).sum()) / count if count else 0.0)
        alive = asked & hits[:, depth]
    return shares


def decayed(parameters: Sequence[nn.Parameter], scale: float = 1.0, decay: float = 0.01) -> list[Group]:
    """Weight decay for matrices, none for norms and biases."""
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [Group(matrices, scale, decay), Group(vectors, scale, 0.0)]
    return [group for group in groups if group.parameters]


def save_weights(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, file: str = "model.safetensors"
) -> None:
    """Writes the weights and then ``config.json``, each whole or not at all."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save = partial(save_file, plain, metadata={"format": "pt"})
    write_whole(folder / file, save, what="the head")
    write_json(folder / "config.json", config, what="the head's config")
