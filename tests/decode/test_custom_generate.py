"""`model.generate(custom_generate=branchwise.custom_generate)`: transformers prepares, branchwise decodes."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
from transformers import DynamicCache, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from branchwise import Speculator, custom_generate
from loop_rig import WildTrees
from processors import BanPrefixSum, two_steps_up
from tiny_folder import CHARACTERS, SPECIAL, character_tokenizer
from zoo import tiny_llama

pytestmark = pytest.mark.core

PROMPTS = ([5, 30], [7, 3, 11], [7, 3, 11, 3, 7, 3, 11, 19, 23])
PAD = 17  # the token this model likes best: padding that is not skipped would show
IDS = torch.tensor([[PAD] * (9 - len(p)) + p for p in PROMPTS])
MASK = torch.tensor([[0] * (9 - len(p)) + [1] * len(p) for p in PROMPTS])
NEW = 14
SETTINGS = {
    "plain": {},
    "repetition penalty": {"repetition_penalty": 1.6},
    "penalty by the prompt": {"encoder_repetition_penalty": 1.6},
    "no repeated pair of the prompt": {"encoder_no_repeat_ngram_size": 2},
    "reward for repetition": {"repetition_penalty": 0.4},
    "no repeated pair": {"no_repeat_ngram_size": 2},
    "min length": {"min_length": 15, "eos_token_id": [10, 22, 19, 17]},
    "max length": {"max_new_tokens": None, "max_length": 14},
    "stop token": {"eos_token_id": 19, "pad_token_id": PAD},
    "a grammar": {"prefix_allowed_tokens_fn": two_steps_up},
    "a ban by the whole padded prefix": {"logits_processor": [BanPrefixSum()]},
    "scores": {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
}


@pytest.fixture(scope="module")
def model():
    model = tiny_llama(seed=2)
    model.generation_config.pad_token_id = PAD
    return model


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=["longest last", "longest first"])
def test_padded_batches_give_transformers_output(model, settings, order):
    """Processors see the padded rows, as they would in transformers."""
    ids, mask = IDS[list(order)], MASK[list(order)]
    options = {"attention_mask": mask, "max_new_tokens": NEW, "do_sample": False, **settings}
    expected = model.generate(ids, **options)
    plain = expected if torch.is_tensor(expected) else expected.sequences
    futures = {tuple(row[:9][keep.bool()].tolist()): row[9:].tolist() for row, keep in zip(plain, mask, strict=True)}
    for drafter in (WildTrees(futures, right=0.8), "mixed", "none"):
        output = model.generate(ids, custom_generate=custom_generate, drafter=drafter, budget=9, **options)
        if torch.is_tensor(expected):
            assert torch.equal(output, expected)
        else:
            assert torch.equal(output.sequences, expected.sequences)
            assert len(output.branchwise) == 3
            for name in ("scores", "logits"):
                for ours, theirs in zip(output[name], expected[name], strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_options_may_also_be_bound_beforehand(model):
    expected = model.generate(IDS, attention_mask=MASK, max_new_tokens=NEW, do_sample=False)
    decode = partial(custom_generate, drafter="ngram", budget=5)
    output = model.generate(IDS, attention_mask=MASK, custom_generate=decode, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(output, expected)


def test_sampling_is_seeded_and_equal_to_the_other_way_in(model):
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.3, "top_k": 0}
    prompt = torch.tensor([PROMPTS[2]])
    first, again, other = (
        model.generate(prompt, custom_generate=custom_generate, seed=seed, budget=9, **options) for seed in (3, 3, 4)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first, Speculator(model, drafter="none").generate(prompt, seed=3, **options))


def test_the_coins_of_a_padded_row_are_those_of_the_row_alone(model):
    options = {
        "max_new_tokens": NEW,
        "do_sample": True,
        "temperature": 1.3,
        "custom_generate": custom_generate,
        "seed": 3,
    }
    batch = model.generate(IDS, attention_mask=MASK, budget=9, **options)
    for row, prompt in zip(batch, PROMPTS, strict=True):
        ids = torch.tensor([prompt])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), budget=5, **options)
        assert row[9:].tolist() == alone[0, len(prompt) :].tolist()


def test_returned_sequences_draw_their_own_coins(model):
    options = {"max_new_tokens": NEW, "do_sample": True, "num_return_sequences": 3}
    prompt = torch.tensor([PROMPTS[2], PROMPTS[2]])
    output = model.generate(prompt, custom_generate=custom_generate, seed=3, budget=9, **options)
    expected = Speculator(model, budget=9).generate(prompt, seed=3, **options)
    assert torch.equal(output, expected)
    assert len({tuple(row.tolist()) for row in output[:3]}) == 3
    assert torch.equal(output[:3], output[3:]), "equal prompts, equal return indices, equal coins"


class Collector(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.tokens.append(-1)


def test_streamer_and_tokenizer_under_names_that_transformers_lets_through():
    model = tiny_llama(seed=4, vocab_size=len(SPECIAL) + len(CHARACTERS))
    tokenizer = character_tokenizer()
    prompt = torch.tensor([PROMPTS[1]])
    collector = Collector()
    output = model.generate(
        prompt,
        custom_generate=custom_generate,
        max_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        branchwise_streamer=collector,
        branchwise_tokenizer=tokenizer,
    )
    assert collector.tokens == [*output.sequences[0].tolist(), -1]
    assert output.branchwise.text == tokenizer.decode(output.branchwise.tokens, skip_special_tokens=True)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"num_beams": 2}, "num_beams"),
        ({"use_cache": False}, "use_cache"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"budget": 0}, "budget"),
        ({"drafter": "nobody"}, "nobody"),
        ({"max_new_tokenz": 3}, "max_new_tokenz"),
        ({"labels": torch.ones(1, 3, dtype=torch.long)}, "labels"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_here_too(model, options, match):
    with pytest.raises(ValueError, match=match):
        model.generate(
            torch.tensor([PROMPTS[1]]),
            custom_generate=custom_generate,
            do_sample=False,
            **{"max_new_tokens": 3, **options},
        )


def test_a_cache_that_already_holds_tokens_is_refused(model):
    ids = torch.tensor([PROMPTS[1]])
    keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    filled = DynamicCache(config=model.config)
    model(ids[:, :2], **{keyword: filled, "use_cache": True})
    with pytest.raises(ValueError, match="cache"):
        model.generate(ids, custom_generate=custom_generate, max_new_tokens=3, **{keyword: filled})


def test_the_generation_config_handed_over_is_not_changed(model):
    seen = []

    def spy(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        before = generation_config.to_dict()
        output = custom_generate(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        seen.append(generation_config.to_dict() == before)
        return output

    config = GenerationConfig(max_new_tokens=3, do_sample=False)
    model.generate(torch.tensor([PROMPTS[1]]), generation_config=config, custom_generate=spy)
    assert seen == [True]


def test_positions_of_the_users_own_are_refused(model):
    with pytest.raises(ValueError, match="position_ids: positions follow from the prompt"):
        model.generate(
            IDS,
            attention_mask=MASK,
            position_ids=torch.zeros_like(IDS),
            max_new_tokens=3,
            custom_generate=custom_generate,
        )
