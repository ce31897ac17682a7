"""Sampling with a seed: the tokens of plain sampling, whatever is drafted and whoever shares the batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers import LogitsProcessorList

from branchwise import Speculator, custom_generate
from drafters import RandomTrees
from loop_rig import WildTrees
from oracles import sampled_by_recompute
from processors import BanPrefixSum, LikesPrefixSum, processors_of, two_steps_up
from zoo import SUPPORTED, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
NEW = 20
SETTINGS = {
    "cold": {"temperature": 0.3},
    "as it is": {},
    "hot": {"temperature": 2.5},
    "top-k": {"top_k": 4, "temperature": 1.5},
    "top-p": {"top_p": 0.7, "temperature": 1.5},
    "min-p": {"min_p": 0.1, "temperature": 2.0},
    "all truncations": {"top_k": 9, "top_p": 0.9, "min_p": 0.02, "temperature": 1.7},
    "repetition penalty": {"repetition_penalty": 1.8},
    "no repeated pair": {"no_repeat_ngram_size": 2, "temperature": 0.4},
    "bad words": {"bad_words_ids": [[3], [7, 11], [19]]},
    "forced end": {"forced_eos_token_id": 5},
    "min new tokens": {"min_new_tokens": 15, "eos_token_id": [1, 2, 3, 4]},
    "decaying length": {"exponential_decay_length_penalty": (4, 1.2), "eos_token_id": 36},
    "a grammar": {"prefix_allowed_tokens_fn": two_steps_up},
    "a ban by the whole prefix": {"logits_processor": LogitsProcessorList([BanPrefixSum()]), "temperature": 0.6},
    "a wish written in place": {"logits_processor": LogitsProcessorList([LikesPrefixSum()])},
    "everything": {
        "logits_processor": LogitsProcessorList([BanPrefixSum()]),
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "prefix_allowed_tokens_fn": two_steps_up,
        "temperature": 1.3,
        "top_k": 8,
        "top_p": 0.95,
    },
}


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.mark.parametrize("seed", [0, 2**63 + 5])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_any_drafter_gives_the_tokens_of_plain_sampling(model, settings, seed):
    options = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0, **settings}
    expected = sampled_by_recompute(model, PROMPT, NEW, processors_of(model, PROMPT, **options), seed)
    stops = options.get("eos_token_id", [])
    ends = [i for i, token in enumerate(expected) if token in (stops if isinstance(stops, list) else [stops])]
    expected = expected[: ends[0] + 1] if ends else expected
    accepted = 0
    for drafter in ("none", "mixed", RandomTrees(seed), WildTrees({tuple(PROMPT): expected}, seed, right=0.8)):
        output = Speculator(model, drafter=drafter, budget=14).complete(PROMPT, seed=seed, **options)
        assert list(output.tokens) == expected
        accepted = output.accepted_drafts
    assert accepted > len(expected) // 4, "the wild trees were hardly accepted: the test lost its point"


@pytest.mark.parametrize("name", ["mistral", "gemma3_text", "gpt_oss"])
def test_other_families_too(name):
    model = build(next(family for family in SUPPORTED if family.model_type == name))
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.2, "top_p": 0.9, "seed": 3}
    expected = Speculator(model, drafter="none").complete(PROMPT, **options).tokens
    wild = WildTrees({tuple(PROMPT): expected}, right=0.8)
    output = Speculator(model, drafter=wild, budget=14).complete(PROMPT, **options)
    assert output.tokens == expected
    assert output.accepted_drafts > 4


def test_one_seed_gives_one_output_and_other_seeds_others(model):
    speculator = Speculator(model, budget=9)
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.5}
    outputs = [speculator.complete(PROMPT, seed=seed, **options).tokens for seed in (1, 1, 2, 3)]
    assert outputs[0] == outputs[1]
    assert len(set(outputs)) == 3


def test_without_a_seed_every_output_is_another(model):
    """Equal outputs of 20 tokens at this temperature have probability below 1e-12."""
    speculator = Speculator(model, budget=9)
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 3.0, "top_k": 0}
    torch.manual_seed(0)
    first = speculator.complete(PROMPT, **options).tokens
    torch.manual_seed(0)  # not the source of the coins
    assert speculator.complete(PROMPT, **options).tokens != first
    batch = speculator.generate(torch.tensor([PROMPT, PROMPT]), **options)
    assert batch[0].tolist() != batch[1].tolist()


def test_the_same_output_alone_in_a_batch_and_padded(model):
    prompts = [[5], [7, 3, 11], PROMPT]
    ids = torch.tensor([[0] * (9 - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (9 - len(p)) + [1] * len(p) for p in prompts])
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.4, "repetition_penalty": 1.2, "seed": 11}
    batch = Speculator(model, budget=9).generate(ids, attention_mask=mask, **options)
    for row, prompt in zip(batch, prompts, strict=True):
        for drafter in ("mixed", "none"):
            alone = Speculator(model, drafter=drafter, budget=5).complete(prompt, **options)
            assert row[9:].tolist() == list(alone.tokens)


def test_a_grammar_is_told_its_row_as_transformers_tells_it(model):
    """The number of the prompt in newer versions, that of the returned sequence in older ones."""
    ids = torch.tensor([[7, 3, 11], [4, 5, 6]])

    def rows_seen(generate) -> set:
        seen = set()

        def allowed(row, prefix):
            seen.add((row, tuple(prefix[:3].tolist())))
            return two_steps_up(row, prefix)

        output = generate(
            ids, max_new_tokens=8, do_sample=True, num_return_sequences=2, prefix_allowed_tokens_fn=allowed
        )
        rows = [next(r for r, start in seen if list(start) == prompt[:3]) for prompt in output.tolist()]
        if len({row for row, _ in seen}) == 2:
            for row, sequence in zip(rows, output.tolist(), strict=True):
                for last, token in pairwise(sequence[2:]):
                    assert 1 <= (token - last - row) % 37 <= 12
        return seen

    speculator = Speculator(model, budget=9)
    expected = rows_seen(model.generate)
    assert rows_seen(speculator.generate) == expected
    assert rows_seen(lambda ids, **options: model.generate(ids, custom_generate=custom_generate, **options)) == expected


def test_two_streams_in_turn_do_not_disturb_each_other(model):
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.4}
    speculator = Speculator(model, budget=9)
    alone = [list(speculator.complete(prompt, seed=4, **options).tokens) for prompt in (PROMPT, [5, 6])]
    streams = [speculator.stream(torch.tensor([prompt]), seed=4, **options) for prompt in (PROMPT, [5, 6])]
    outputs: list[list[int]] = [[], []]
    running = [0, 1]
    while running:
        for index in list(running):
            run = next(streams[index], None)
            if run is None:
                running.remove(index)
            else:
                outputs[index] += run
    assert outputs == alone
    assert speculator.target.cache.lanes == ()


@pytest.mark.parametrize("seed", [-1, 2**64, "7", 1.5])
def test_a_seed_that_is_none_is_refused_before_anything_runs(model, seed):
    speculator = Speculator(model, budget=9)
    with pytest.raises((ValueError, TypeError), match=r"seed|int"):
        speculator.complete(PROMPT, max_new_tokens=4, do_sample=True, seed=seed)
    assert speculator.target.cache.lanes == ()


def test_greedy_needs_no_seed_and_ignores_it(model):
    options = {"max_new_tokens": NEW, "do_sample": False}
    speculator = Speculator(model, budget=9)
    assert speculator.complete(PROMPT, seed=1, **options).tokens == speculator.complete(PROMPT, **options).tokens
