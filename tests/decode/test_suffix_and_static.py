"""Suffix and static drafters in the loop: token for token the output of plain decoding, in float64."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList

from branchwise import Speculator
from branchwise.draft import (
    MixedDrafter,
    NgramSource,
    RecyclingSource,
    StaticDrafter,
    SuffixDrafter,
    SuffixSource,
    SuffixStore,
)
from branchwise.tree import StaticShape
from oracles import greedy_by_recompute, sampled_by_recompute
from zoo import SUPPORTED, build, tiny_llama

pytestmark = pytest.mark.core

PROMPTS = [[7, 3, 11, 3, 7, 3, 11, 19, 23], [5], [1, 2, 1, 2, 1, 2, 1], [30, 7, 3, 11, 3]]
NEW = 40

DRAFTERS = {
    "suffix": SuffixDrafter,
    "suffix, small store": lambda: SuffixDrafter(SuffixStore(128)),
    "suffix, no store": lambda: MixedDrafter([SuffixSource()], name="suffix"),
    "mixed": lambda: MixedDrafter([NgramSource(), SuffixSource(SuffixStore()), RecyclingSource()]),
    "static": lambda: StaticDrafter(
        MixedDrafter([SuffixSource(SuffixStore()), RecyclingSource()]),
        StaticShape([(0,), (1,), (0, 0), (0, 2), (1, 0)]),
    ),
    "static recycling": lambda: StaticDrafter(RecyclingSource(), StaticShape.kary((3, 2, 1))),
}


@pytest.fixture(scope="module")
def model():
    return tiny_llama(seed=2)


@pytest.fixture(scope="module")
def greedy(model):
    return [greedy_by_recompute(model, prompt, NEW) for prompt in PROMPTS]


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_output_is_plain_decodings_for_a_drafter_that_is_kept(model, greedy, name):
    speculator = Speculator(model, drafter=DRAFTERS[name](), budget=12)
    accepted = 0
    for _ in range(2):  # the second time the drafter knows the texts
        for prompt, expected in zip(PROMPTS, greedy, strict=True):
            output = speculator.complete(prompt, max_new_tokens=NEW, do_sample=False)
            assert list(output.tokens) == expected
            accepted += output.accepted_drafts
    assert accepted > NEW, "hardly a draft was accepted: the test lost its point"


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_batch_gives_every_row_its_own_output(model, greedy, name):
    longest = max(map(len, PROMPTS))
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in PROMPTS]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS]
    speculator = Speculator(model, drafter=DRAFTERS[name](), budget=9)
    output = speculator.generate(
        torch.tensor(rows), attention_mask=torch.tensor(mask), max_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    assert output[:, longest:].tolist() == greedy


@pytest.mark.parametrize("name", DRAFTERS)
def test_sampled_output_with_a_seed_is_plain_samplings(model, name):
    from transformers import TemperatureLogitsWarper

    processors = LogitsProcessorList([TemperatureLogitsWarper(0.6)])
    speculator = Speculator(model, drafter=DRAFTERS[name](), rule="match", budget=12)
    for seed in (0, 1, 0):
        expected = sampled_by_recompute(model, PROMPTS[0], NEW, processors, seed)
        options = {"do_sample": True, "temperature": 0.6, "top_k": 0, "max_new_tokens": NEW}
        assert list(speculator.complete(PROMPTS[0], seed=seed, **options).tokens) == expected


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_other_families_too(family):
    model = build(next(one for one in SUPPORTED if one.model_type == family))
    expected = greedy_by_recompute(model, PROMPTS[0], NEW)
    for make in DRAFTERS.values():
        output = Speculator(model, drafter=make(), budget=10).complete(PROMPTS[0], max_new_tokens=NEW, do_sample=False)
        assert list(output.tokens) == expected


def test_a_store_saved_after_one_run_helps_the_next(model, greedy, tmp_path):
    def run(store: SuffixStore) -> int:
        speculator = Speculator(model, drafter=SuffixDrafter(store), budget=12)
        outputs = [speculator.complete(prompt, max_new_tokens=NEW, do_sample=False) for prompt in PROMPTS]
        assert [list(output.tokens) for output in outputs] == greedy
        store.save(tmp_path / "store")
        return sum(output.steps for output in outputs)

    first = run(SuffixStore())
    second = run(SuffixStore.load(tmp_path / "store"))
    assert second < 0.5 * first
