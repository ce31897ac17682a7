"""A checkpoint has one fingerprint however it is loaded, and a fine-tuned one has another."""

from __future__ import annotations

import copy

import pytest
import torch

from branchwise.target.fingerprint import fingerprint
from zoo import tiny_llama

pytestmark = pytest.mark.core


def rounded():
    """A model whose values are bfloat16's, as those of a checkpoint in it."""
    return tiny_llama().to(torch.bfloat16)


def test_it_does_not_depend_on_the_dtype_of_loading():
    model = rounded()
    found = {fingerprint(copy.deepcopy(model).to(dtype)) for dtype in (torch.bfloat16, torch.float32, torch.float64)}
    assert len(found) == 1
    assert fingerprint(model) == fingerprint(model), "looking changes nothing"
    wide = tiny_llama().float()  # a checkpoint in float32, and the same as bfloat16 has it
    assert fingerprint(wide) == fingerprint(copy.deepcopy(wide).to(torch.bfloat16))


def test_training_and_merged_adapters_change_it():
    model = rounded()
    base = fingerprint(model)
    tuned = copy.deepcopy(model).float()
    loss = tuned(input_ids=torch.tensor([[1, 2, 3, 4]]), labels=torch.tensor([[1, 2, 3, 4]])).loss
    loss.backward()
    torch.optim.SGD(tuned.parameters(), lr=0.1).step()
    assert fingerprint(tuned) != base
    merged = copy.deepcopy(model).float()
    with torch.no_grad():  # an adapter of rank 1 on one projection of one layer
        weight = merged.model.layers[1].self_attn.q_proj.weight
        weight += 0.05 * torch.randn(len(weight), 1) @ torch.randn(1, weight.shape[1])
    assert fingerprint(merged) != base


def test_other_shapes_and_names_are_others():
    found = {fingerprint(tiny_llama(num_hidden_layers=n).to(torch.bfloat16)) for n in (2, 3, 4)}
    assert len(found) == 3


def test_a_model_that_is_not_in_memory_has_none():
    assert fingerprint(tiny_llama().to("meta")) is None
