"""Matrices in 8 bits: how far they are from those they stand for, and how a checkpoint hands them out."""

from __future__ import annotations

import pytest
import torch
from eagle_folders import eagle3
from safetensors.torch import load_file, save_file

from branchwise.draft.checkpoint import HeadCheckpoint
from branchwise.draft.eagle_load import load_eagle_head
from branchwise.draft.head_config import HeadCheckpointError
from branchwise.draft.packed import pack_rows, unpack_rows
from zoo import tiny_llama

pytestmark = pytest.mark.core


def test_every_number_is_within_half_a_step_of_its_row():
    matrix = torch.randn(7, 40) * torch.logspace(-6, 3, 7)[:, None]
    values, scale = pack_rows(matrix)
    assert values.dtype is torch.int8 and values.shape == matrix.shape and scale.shape == (7,)
    step = matrix.abs().amax(1, keepdim=True) / 127
    assert bool(((unpack_rows(values, scale) - matrix).abs() <= step * 0.5001).all())


def test_rows_of_zeros_and_extremes_come_back():
    matrix = torch.tensor([[0.0, 0.0], [-2.0, 2.0], [127.0, -1.0]])
    assert torch.equal(unpack_rows(*pack_rows(matrix)), matrix)


def packed_folder(folder):
    """A published head with all its matrices packed."""
    eagle3().write(folder)
    path = folder / "model.safetensors"
    made = {}
    for name, tensor in load_file(path).items():
        if tensor.is_floating_point() and tensor.ndim == 2:
            made[name], made[f"{name}.scale"] = pack_rows(tensor)
        else:
            made[name] = tensor
    save_file(made, path)
    return folder, made


def test_a_packed_head_is_loaded_as_the_numbers_it_stands_for(tmp_path):
    folder, made = packed_folder(tmp_path)
    assert not any(name.endswith(".scale") for name in HeadCheckpoint(folder).names)
    head = load_eagle_head(folder, tiny_llama(num_hidden_layers=6))
    expected = unpack_rows(made["fc.weight"], made["fc.weight.scale"])
    torch.testing.assert_close(head.fc.weight, expected.to(head.fc.weight.dtype), rtol=0, atol=0)
    assert head.lm_head is not None and bool(head.lm_head.weight.isfinite().all())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda made: made.pop("fc.weight.scale"), r"'fc\.weight'.*holds torch\.int8"),
        (lambda made: made.update({"fc.weight.scale": torch.ones(3)}), r"'fc\.weight\.scale'.*shape \[3\]"),
        (lambda made: made.update({"norm.weight.scale": torch.ones(32)}), "has a scale beside it but holds"),
    ],
)
def test_pairs_that_do_not_belong_together(tmp_path, spoil, message):
    folder, made = packed_folder(tmp_path)
    spoil(made)
    save_file(made, folder / "model.safetensors")
    with pytest.raises(HeadCheckpointError, match=message):
        load_eagle_head(folder, tiny_llama(num_hidden_layers=6))
