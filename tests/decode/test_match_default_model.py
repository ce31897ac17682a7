"""Seeded sampling on the real default model: rule "match" with drafts writes what plain sampling writes.

Float32, 2,000 tokens: four temperatures, ten sequences each. ``bench/bars.sh exact`` does 2,000 per temperature.
"""

from __future__ import annotations

import pytest
import torch

from branchwise import Speculator
from branchwise.bench.prompts import encode_prompt
from branchwise.hub import load
from branchwise.target import HuggingFaceTarget

pytestmark = pytest.mark.model

SEQUENCES, NEW = 10, 50


@pytest.fixture(scope="module")
def loaded():
    model, tokenizer = load("default", dtype=torch.float32)
    prompt = encode_prompt(tokenizer, "List ten animals, then describe the first of them in two sentences.")
    return HuggingFaceTarget(model), torch.tensor([prompt])


@pytest.mark.parametrize("temperature", [0.4, 0.7, 1.0, 1.4])
def test_match_writes_the_tokens_of_plain_sampling(loaded, temperature: float) -> None:
    target, ids = loaded
    options = {
        "do_sample": True,
        "temperature": temperature,
        "num_return_sequences": SEQUENCES,
        "max_new_tokens": NEW,
        "min_new_tokens": NEW,
        "return_dict_in_generate": True,
        "seed": 11,
    }
    plain = Speculator(target, drafter="none", rule="match", budget=1).generate(ids, **options)
    drafts = Speculator(target, drafter="mixed", rule="match", budget=5).generate(ids, **options)
    assert plain.sequences.shape == (SEQUENCES, ids.shape[1] + NEW)
    assert torch.equal(drafts.sequences, plain.sequences)
    assert len({tuple(row) for row in plain.sequences.tolist()}) == SEQUENCES
    assert max(run.tokens_per_step for run in drafts.branchwise) > 1.1, "drafts that are never right prove nothing"
