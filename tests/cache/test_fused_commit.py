"""One launch moves what layer by layer moves, bit for bit, in every buffer.

The kernel runs in Triton's interpreter where there is no GPU.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.cache import TreeCache
from branchwise.cache.fused_commit import can_fuse, move_paths
from branchwise.cache.tree_cache import move_layer_by_layer

# Triton has no wheels for some platforms
pytestmark = [pytest.mark.core, pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")]

WINDOWS = (None, 4, None)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def filled(lengths: tuple[int, ...], nodes: int, dtype: torch.dtype, seed: int = 0) -> TreeCache:
    """A cache with a tree of ``nodes`` in flight in every lane; rows of different widths and heads, all different."""
    cache = TreeCache(WINDOWS, lanes=len(lengths))
    lanes = [cache.open() for _ in lengths]
    make = torch.Generator().manual_seed(seed)
    for width, paths in (
        (max(lengths), {lane: range(n) for lane, n in zip(lanes, lengths, strict=True)}),
        (nodes, None),
    ):
        cache.begin(range(len(lanes)))
        for index, layer in enumerate(cache.layers):
            heads, dim = (2, 6) if index else (3, 5)
            rows = (torch.randn(len(lanes), heads, width, w, generator=make).to(dtype) for w in (dim, dim + 3))
            layer.update(*(row.to(DEVICE) for row in rows))
        if paths is not None:
            cache.commit(paths)
    return cache


def buffers(cache: TreeCache) -> list[torch.Tensor]:
    return [buffer for layer in cache.layers for buffer in (layer.keys, layer.values)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_all_layers_and_lanes_at_once(dtype: torch.dtype) -> None:
    lengths, paths = (9, 3, 70), {0: (0, 2, 3, 7), 2: (1, 2, 4), 1: ()}
    one, other = filled(lengths, 8, dtype), filled(lengths, 8, dtype)
    move_layer_by_layer(one.layers, paths)
    move_paths(other.layers, paths)
    assert all(map(torch.equal, buffers(one), buffers(other)))


# 25 draws of up to 12 nodes: a path that overlaps its own destination is certain to be among them
@settings(max_examples=25, deadline=None)
@given(nodes=st.sets(st.integers(0, 11)), length=st.integers(1, 5), longer=st.integers(0, 3))
def test_rows_that_move_over_rows_of_the_path(nodes: set[int], length: int, longer: int) -> None:
    """Lane 0 has fewer committed rows than lane 1, so its tree starts behind a gap of ``longer`` rows."""
    path = {0: tuple(sorted(nodes))}
    one, other = (filled((length, length + longer), 12, torch.float32) for _ in range(2))
    move_layer_by_layer(one.layers, path)
    move_paths(other.layers, path)
    assert all(map(torch.equal, buffers(one), buffers(other)))


def test_a_chain_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled((5, 5), 4, torch.float32)
    before = [buffer.clone() for buffer in buffers(cache)]
    monkeypatch.setitem(sys.modules, "branchwise.cache.commit_kernel", None)  # importing it would raise
    move_paths(cache.layers, {0: (0, 1, 2), 1: (0,)})
    assert all(map(torch.equal, before, buffers(cache)))


def test_it_is_for_gpus() -> None:
    assert can_fuse(filled((2,), 3, torch.float32).layers) is torch.cuda.is_available()
    assert not can_fuse(TreeCache(WINDOWS).layers)
