"""Logits of earlier forwards stay what they were, as long as anybody holds them; then their memory serves again."""

from __future__ import annotations

import pytest
import torch

from branchwise.target.kept_memory import KeptMemory

pytestmark = pytest.mark.core


def test_memory_comes_again_only_when_nobody_holds_a_part_of_it():
    memory = KeptMemory()
    first = memory.empty(3, 50).fill_(1.0)
    row = first[2]
    address = first.data_ptr()
    del first
    second = memory.empty(3, 50).fill_(2.0)
    assert torch.equal(row, torch.ones(50)), "a row of it is still in use"
    del row
    assert memory.empty(2, 50).data_ptr() == address
    assert torch.equal(second, torch.full((3, 50), 2.0))


def test_no_two_tensors_in_use_share_memory():
    memory = KeptMemory()
    held = [memory.empty(rows, 7).fill_(float(rows)) for rows in (1, 5, 2, 9, 3, 9)]
    for rows, tensor in zip((1, 5, 2, 9, 3, 9), held, strict=True):
        assert tensor.shape == (rows, 7)
        assert torch.equal(tensor, torch.full((rows, 7), float(rows)))
    assert memory.empty(0, 7).shape == (0, 7)
