"""The attention is registered once, lazily, under one name, and keeps no state between calls."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from branchwise import Speculator
from branchwise.attention.interface import ATTENTION_NAME, StepMissing, register
from oracles import greedy_by_recompute
from zoo import tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11]


def test_importing_registers_nothing():
    program = (
        "import branchwise, branchwise.decode, branchwise.target, branchwise.attention.interface as interface\n"
        "from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks\n"
        "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as attentions\n"
        "assert interface.ATTENTION_NAME not in attentions.valid_keys()\n"
        "assert interface.ATTENTION_NAME not in masks.valid_keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_registering_twice_is_registering_once():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert register() == ATTENTION_NAME
    function = ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME]
    assert register() == ATTENTION_NAME
    assert ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME] is function


def test_a_model_set_to_it_by_hand_is_told_what_to_do():
    model = tiny_llama()
    model.set_attn_implementation(register())
    with pytest.raises(StepMissing, match="runs only inside branchwise; set another attn_implementation"):
        model(torch.tensor([PROMPT]))


@pytest.mark.parametrize("own", ["sdpa", "eager"])
def test_two_targets_in_turn_and_the_models_own_forward_between(own):
    models = [tiny_llama(seed=seed) for seed in (0, 1)]
    for model in models:
        model.set_attn_implementation(own)
    expected = [greedy_by_recompute(model, PROMPT, 8) for model in models]
    streams = [
        Speculator(model, budget=5).stream(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False)
        for model in models
    ]
    outputs: list[list[int]] = [[], []]
    running = {0, 1}
    while running:
        for index in sorted(running):
            assert models[index].config._attn_implementation == own
            assert greedy_by_recompute(models[index], PROMPT, 1) == expected[index][:1]
            run = next(streams[index], None)
            if run is None:
                running.discard(index)
            else:
                outputs[index] += run
    assert outputs == expected
