"""Committing on a GPU: the accepted rows of all layers and lanes move in one kernel launch.

Layer by layer it would be four small kernels each. Everything that the kernel has to know (addresses, strides, paths)
goes over in one transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec

import torch

from .tree_layer import TreeLayer

_BLOCK = 128
"""Elements of a row that a program moves at a time."""


def can_fuse(layers: Sequence[TreeLayer]) -> bool:
    """Whether `move_paths` works for these layers: all on one GPU with elements of one size, and triton installed."""
    buffers = [buffer for layer in layers for buffer in (layer.keys, layer.values)]
    if not buffers or any(buffer is None or not buffer.is_cuda for buffer in buffers):
        return False
    kinds = {(buffer.device, buffer.element_size()) for buffer in buffers if buffer is not None}
    return len(kinds) == 1 and _has_triton()


def move_paths(layers: Sequence[TreeLayer], paths: Mapping[int, Sequence[int]]) -> None:
    """Moves the rows of each slot's path behind the slot's committed rows, in every layer. Counts nothing.

    Args:
        layers: initialised, on one device, with elements of one size.
        paths: slot -> increasing node numbers of the forward in flight.
    """
    if all(_stays(layer, slot, path) for layer in layers for slot, path in paths.items()):
        return
    from .commit_kernel import move_rows, tl

    buffers = [buffer for layer in layers for buffer in (layer.keys, layer.values) if buffer is not None]
    longest = max(map(len, paths.values()))
    described = [(buffer.data_ptr(), *buffer.stride()[:3], buffer.shape[1], buffer.shape[3]) for buffer in buffers]
    places = [(layer.base, layer.kept[slot]) for layer in layers for _ in "kv" for slot in paths]
    lanes = [(slot, len(path), *path, *([0] * (longest - len(path)))) for slot, path in paths.items()]
    tables = [torch.tensor(table, dtype=torch.int64).flatten() for table in (described, places, lanes)]
    sent = torch.cat(tables).to(buffers[0].device, non_blocking=True)
    at_buffers, at_places, at_lanes = sent.split([len(table) for table in tables])
    item = getattr(tl, f"int{8 * buffers[0].element_size()}")
    heads = max(buffer.shape[1] for buffer in buffers)
    move_rows[(len(buffers), len(paths), heads)](
        at_buffers, at_places, at_lanes, len(paths), longest, ITEM=item, BLOCK=_BLOCK
    )


def _stays(layer: TreeLayer, slot: int, path: Sequence[int]) -> bool:
    """Whether the rows of a path already lie where they belong, as those of a chain do."""
    shift = layer.base - layer.kept[slot]
    return all(node + shift == step for step, node in enumerate(path))


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
