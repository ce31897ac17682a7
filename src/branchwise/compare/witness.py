"""Looking over a model's shoulder: how often it runs, and which mask its attention gets.

Hooks are put on for the length of a ``with`` and taken off whatever happens; the model computes what it would have
computed, unless another mask is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import TreeLayout
from ..attention.interface import STEP_KEYWORD, AttentionStep
from ..target.huggingface import HuggingFaceTarget


@dataclass
class Witness:
    """What was seen.

    Attributes:
        forwards: calls of the model.
        masks: of every call, bool ``[N, S + N]``: what the nodes of the first lane see of its rows.
        committed: of every call, rows S that stand before the nodes.
    """

    forwards: int = 0
    masks: list[Tensor] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)


@contextmanager
def watching(target: HuggingFaceTarget, other_nodes: Callable[[Tensor], Tensor] | None = None) -> Iterator[Witness]:
    """A witness of the target's forwards.

    Args:
        target: whose model runs; one lane at a time.
        other_nodes: what nodes see of each other, bool ``[N, N]`` -> what they shall see instead.
    """
    witness = Witness()

    def before(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        witness.forwards += 1
        step = kwargs.get(STEP_KEYWORD)
        if step is None:  # a model that keeps its own attention gets a dense mask, 0 where it may look
            mask = kwargs["attention_mask"][0, 0] == 0
        else:
            committed = step.committed_rows(0)
            mask = step.layout.mask(committed, max(committed), step.window_of(0))[0]
        slots = mask.shape[1] - mask.shape[0]
        if other_nodes is not None:
            nodes = other_nodes(mask[:, slots:])
            mask = torch.cat((mask[:, :slots], nodes), dim=1)
            kwargs = {**kwargs, **_with_nodes(step, kwargs, nodes, slots)}
        witness.masks.append(mask.cpu())
        witness.committed.append(slots)
        return args, kwargs

    handle = target.model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield witness
    finally:
        handle.remove()


def _with_nodes(step: AttentionStep | None, kwargs: dict[str, Any], nodes: Tensor, slots: int) -> dict[str, Any]:
    """The arguments that carry the mask, with another block between the nodes."""
    if step is None:
        mask = kwargs["attention_mask"].clone()
        mask[0, 0, :, slots:] = torch.where(nodes, 0.0, torch.finfo(mask.dtype).min)
        return {"attention_mask": mask}
    layout = TreeLayout(step.layout.nodes, step.layout.depth, is_causal=False, ancestors=nodes[None])
    # the list of layers seen is shared, so that the target finds it filled
    return {STEP_KEYWORD: replace(step, layout=layout)}


@contextmanager
def counting_rows(layer: nn.Module) -> Iterator[list[int]]:
    """Rows that go through one decoder layer: one number per call."""
    rows: list[int] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        rows.append(hidden.shape[0] * hidden.shape[1])

    handle = layer.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield rows
    finally:
        handle.remove()
