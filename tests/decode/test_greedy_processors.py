"""Greedy with processors: transformers' own tokens, each law taken at the node's own prefix."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor

from branchwise import Speculator
from drafters import RandomTrees
from loop_rig import WildTrees
from processors import BanPrefixSum, LikesPrefixSum, two_steps_up
from zoo import tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
OTHER = [1, 2, 3, 4, 5, 6, 7, 8, 9]
NEW = 20
SETTINGS = {
    "repetition penalty": {"repetition_penalty": 1.5},
    "reward for repetition": {"repetition_penalty": 0.6},
    "no repeated pair": {"no_repeat_ngram_size": 2},
    "no repeated token": {"no_repeat_ngram_size": 1},
    "min new tokens": {"min_new_tokens": 7, "eos_token_id": list(range(12))},
    "bad words": {"bad_words_ids": [[17], [3, 5], [22, 19]]},
    "suppressed": {"suppress_tokens": [17, 22, 19, 3]},
    "suppressed at the start": {"begin_suppress_tokens": [17, 22, 19, 12]},
    "forced end": {"forced_eos_token_id": 5},
    "sequence bias": {"sequence_bias": {(17,): -9.0, (22, 19): 8.0, (5, 6): 3.0}},
    "decaying length": {"exponential_decay_length_penalty": (4, 1.3), "eos_token_id": 36},
    "a grammar": {"prefix_allowed_tokens_fn": two_steps_up},
    "renormalised": {"renormalize_logits": True, "repetition_penalty": 1.1},
    "nan and inf removed": {"remove_invalid_values": True},
    "a ban by the whole prefix": {"logits_processor": LogitsProcessorList([BanPrefixSum()])},
    "a wish written in place": {"logits_processor": LogitsProcessorList([LikesPrefixSum()])},
    "a plain list": {"logits_processor": [BanPrefixSum(), SuppressTokensLogitsProcessor([17])]},
    "everything": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[17]],
        "sequence_bias": {(22, 19): 8.0},
        "logits_processor": LogitsProcessorList([BanPrefixSum(), LikesPrefixSum()]),
    },
}


@pytest.fixture(scope="module")
def model():
    return tiny_llama(seed=2)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_greedy_with_processors_gives_transformers_tokens(model, settings):
    ids = torch.tensor([PROMPT, OTHER])
    options = {"max_new_tokens": NEW, "do_sample": False, **settings}
    expected = model.generate(ids, **options)
    futures = {tuple(row[:9].tolist()): row[9:].tolist() for row in expected}
    accepted = 0
    for drafter in ("none", "mixed", RandomTrees(), WildTrees(futures, right=0.8)):
        output = Speculator(model, drafter=drafter, budget=14).generate(ids, return_dict_in_generate=True, **options)
        assert torch.equal(output.sequences, expected)
        accepted = sum(generation.accepted_drafts for generation in output.branchwise)
    assert accepted > 3


def test_the_settings_do_change_the_output(model):
    """Otherwise the test above would pass with the processors left out."""
    ids = torch.tensor([PROMPT, OTHER])
    plain = model.generate(ids, max_new_tokens=NEW, do_sample=False)
    same = [
        name
        for name, settings in SETTINGS.items()
        if torch.equal(model.generate(ids, max_new_tokens=NEW, do_sample=False, **settings), plain)
    ]
    assert same == ["nan and inf removed"]


def test_a_processor_that_writes_in_place_leaves_the_raw_logits_alone(model):
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(torch.tensor([PROMPT]), **options)
    wishing = Speculator(model, budget=9).generate(
        torch.tensor([PROMPT]), logits_processor=[LikesPrefixSum()], **options
    )
    torch.testing.assert_close(wishing.logits[0], plain.logits[0], rtol=0, atol=1e-6)


def test_processors_are_not_called_at_nodes_that_no_one_visits(model):
    calls = []

    class Counting(BanPrefixSum):
        def __call__(self, input_ids, scores):
            calls.append(tuple(input_ids[0].tolist()))
            return super().__call__(input_ids, scores)

    output = Speculator(model, drafter=RandomTrees(), budget=14).complete(
        PROMPT, max_new_tokens=NEW, do_sample=False, logits_processor=[Counting()]
    )
    text = (*PROMPT, *output.tokens)
    assert calls == [text[: len(PROMPT) + n] for n in range(NEW)], "once per token, with that token's own prefix"
