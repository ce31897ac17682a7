"""What cannot be honoured or is malformed raises before the first token, names itself, and leaves no lane behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache, GenerationConfig, TemperatureLogitsWarper, TextStreamer

import branchwise
from branchwise import Speculator
from branchwise.draft import NoneDrafter
from branchwise.verify import Greedy
from zoo import CONTEXT, VOCAB, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7]
IDS = torch.tensor([PROMPT])


class NoForwards:
    """A model whose forward must not run."""

    def __init__(self, model) -> None:
        self.model = model

    def __enter__(self) -> None:
        def refuse(*_):
            raise AssertionError("the model ran although the request was to be refused")

        self._handle = self.model.register_forward_pre_hook(refuse)

    def __exit__(self, *_) -> None:
        self._handle.remove()


@pytest.fixture(scope="module")
def speculator():
    return Speculator(tiny_llama(), drafter="ngram", budget=9)


def refused(speculator, match, *args, error=ValueError, **options) -> None:
    with NoForwards(speculator.model), pytest.raises(error, match=match):
        speculator.generate(*(args or (IDS,)), **{"max_new_tokens": 4, **options})
    assert speculator.target.cache.lanes == ()


REFUSED = {
    "num_beams": 2,
    "assistant_model": tiny_llama(),
    "prompt_lookup_num_tokens": 3,
    "assistant_early_exit": 1,
    "cache_implementation": "static",
    "past_key_values": DynamicCache(),
    "cache": DynamicCache(),
    "inputs_embeds": torch.zeros(1, 5, 32),
    "position_ids": torch.arange(5)[None],
    "penalty_alpha": 0.6,
    "use_cache": False,
    "output_attentions": True,
    "output_hidden_states": True,
    "guidance_scale": 1.5,
    "negative_prompt_ids": IDS,
    "token_healing": True,
    "custom_generate": lambda *_: None,
    "dola_layers": "low",
    "force_words_ids": [[3]],
}


@pytest.mark.parametrize("name, value", REFUSED.items(), ids=REFUSED.keys())
def test_an_argument_that_has_no_tree_form_is_refused_by_name(speculator, name, value):
    extra = {"penalty_alpha": {"top_k": 4}}.get(name, {})
    refused(speculator, name, do_sample=False, return_dict_in_generate=True, **extra, **{name: value})


@pytest.mark.parametrize("name", ["num_beams", "prompt_lookup_num_tokens", "cache_implementation", "use_cache",
                                  "output_attentions", "guidance_scale", "token_healing"])  # fmt: skip
@pytest.mark.parametrize("where", ["config", "model"])
def test_the_same_in_a_generation_config_is_refused(speculator, name, where):
    own = speculator.model.generation_config
    config = GenerationConfig(max_new_tokens=4, return_dict_in_generate=True, pad_token_id=0)
    setattr(config, name, REFUSED[name])
    try:
        if where == "model":
            speculator.model.generation_config = config
        refused(speculator, name.split("_")[0], generation_config=config if where == "config" else None)
    finally:
        speculator.model.generation_config = own


@pytest.mark.parametrize("call", ["stream", "complete"])
def test_a_streamer_is_for_generate_alone(speculator, call):
    with NoForwards(speculator.model), pytest.raises(ValueError, match="streamer"):
        getattr(speculator, call)(IDS if call == "stream" else PROMPT, streamer=object(), max_new_tokens=4)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"max_new_tokenz": 5}, "max_new_tokenz"),
        ({"top_kk": 5}, "top_kk"),
        ({"token_type_ids": torch.zeros_like(IDS)}, "token_type_ids"),
        ({"labels": IDS}, "labels"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_argument_that_nobody_knows_is_refused_by_name(speculator, options, match):
    refused(speculator, match, **options)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": -3}, "max_new_tokens"),
        ({"max_new_tokens": None, "max_length": 5}, "max_length"),
        ({"max_new_tokens": None, "max_length": 3}, "max_length"),
        ({"do_sample": True, "temperature": -1.0}, "temperature"),
        ({"do_sample": True, "top_p": -0.5}, "top_p"),
        ({"repetition_penalty": -1.0}, "penalty"),
        ({"do_sample": False, "num_return_sequences": 2}, "num_return_sequences"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(speculator, options, match):
    refused(speculator, match, **options)


@pytest.mark.parametrize(
    "ids, match",
    [
        ([[]], "empty"),
        (torch.zeros(1, 0, dtype=torch.long), "empty"),
        (torch.zeros(0, 4, dtype=torch.long), "empty"),
        (torch.tensor([[1, VOCAB, 2]]), rf"token 1 is {VOCAB}.*vocabulary of {VOCAB}"),
        (torch.tensor([[1, 2, -1]]), "token 2 is -1"),
        (torch.tensor([[1.0, 2.0]]), "whole numbers.*float32"),
        (torch.tensor([[True, False]]), "whole numbers.*bool"),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"\[batch, length\].*\[1, 2, 3\]"),
        (torch.tensor(3), r"\[batch, length\]"),
        (np.array([[0.5]]), "whole numbers"),
        ("hello", r"got text \('hello'\); give tokenizer\(text"),
        (["hello", "there"], r"got text \(\['hello', 'there'\]\); give tokenizer\(text"),
        ({"input_ids": IDS}, r"got a dict with input_ids; hand it over with two stars"),
        ([[1, 2], [3]], r"different lengths \[2, 1\]; pad them"),
        (object(), "must be token ids, got a object"),
        (IDS.to("meta"), "device 'meta'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_prompts_that_are_none_are_refused(speculator, ids, match):
    refused(speculator, f"(?s){match}", ids)


def test_one_bad_row_refuses_the_batch_before_any_row_runs(speculator):
    refused(speculator, "token 1 is 99", torch.tensor([[1, 2, 3], [1, 99, 3]]))


@pytest.mark.parametrize(
    "mask, match",
    [
        (torch.ones(1, 4), r"\[1, 5\], got \[1, 4\]"),
        (torch.ones(2, 5), r"\[1, 5\], got \[2, 5\]"),
        (torch.ones(1, 1, 5, 5), r"got \[1, 1, 5, 5\]"),
        (torch.zeros(1, 5), "row 0 .* all padding"),
    ],
    ids=["short", "tall", "four dimensions", "zeros"],
)
def test_masks_that_do_not_fit_are_refused(speculator, mask, match):
    refused(speculator, match, IDS, attention_mask=mask)


def test_both_names_of_the_prompt_at_once_are_refused(speculator):
    refused(speculator, "both inputs and input_ids", IDS, inputs=IDS)


@pytest.mark.parametrize("length, runs", [(CONTEXT - 1, True), (CONTEXT, False), (CONTEXT + 9, False)])
def test_a_prompt_must_leave_room_in_the_context(speculator, length, runs):
    ids = torch.ones(1, length, dtype=torch.long)
    if runs:
        output = speculator.generate(ids, max_new_tokens=4, return_dict_in_generate=True)
        assert output.branchwise.stop_cause == "context_limit"
        assert len(output.branchwise.tokens) == 1
    else:
        refused(speculator, rf"{length} tokens.*context ends at {CONTEXT}.*at most {CONTEXT - 1}", ids)


@pytest.mark.parametrize("budget", [0, -1, "0", "-7", 2.5, 9.0, "x", "", "9.0", "²", None, True, [9]], ids=repr)
@pytest.mark.parametrize("call", ["Speculator", "generate"])
def test_a_budget_that_is_none_is_refused(budget, call):
    model = tiny_llama()
    with NoForwards(model), pytest.raises(ValueError, match="budget"):
        if call == "generate":
            branchwise.generate(model, IDS, budget=budget)
        else:
            Speculator(model, budget=budget)


@pytest.mark.parametrize("budget", [1, 2, "33", 200, "auto"])
def test_budgets_that_are_some(budget):
    model = tiny_llama()
    expected = model.generate(IDS, max_new_tokens=8, do_sample=False)
    assert torch.equal(branchwise.generate(model, IDS, budget=budget, max_new_tokens=8, do_sample=False), expected)


@pytest.mark.parametrize("option, value, known", [("drafter", "medusae", "ngram"), ("rule", "gready", "greedy")])
def test_an_unknown_name_is_answered_with_the_known_ones(option, value, known):
    with pytest.raises(ValueError, match=f"(?s)'{value}'.*{known}"):
        branchwise.generate(tiny_llama(), IDS, **{option: value})


def test_a_rule_that_does_not_fit_the_sampling_mode_is_refused(speculator):
    greedy = Speculator(speculator.model, rule="greedy", budget=5)
    refused(greedy, "greedy.*do_sample", do_sample=True)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"generation_config": {"max_new_tokens": 4}}, "must be a transformers GenerationConfig, got dict"),
        ({"max_new_tokens": "4"}, "max_new_tokens must be a whole number, got the text '4'"),
        ({"logits_processor": TemperatureLogitsWarper(0.5)}, "must be a list, got one TemperatureLogitsWarper"),
        ({"seed": "a"}, "a seed must be a whole number .*, got 'a'"),
        ({"seed": 1.5}, "a seed must be a whole number .*, got 1.5"),
        ({"streamer": "x"}, r"put\(\) and end\(\), got 'x'"),
        ({"streamer": TextStreamer}, r"put\(\) and end\(\), got <class"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_of_another_type_are_refused_by_name(speculator, options, match):
    refused(speculator, match, **options)


@pytest.mark.parametrize("prompt, match", [("hello", "got text"), (torch.cat([IDS, IDS]), "one sequence at a time")])
def test_complete_takes_one_prompt_of_ids(speculator, prompt, match):
    with NoForwards(speculator.model), pytest.raises(ValueError, match=match):
        speculator.complete(prompt, max_new_tokens=4)
    whole = speculator.complete(PROMPT, max_new_tokens=4, do_sample=False).tokens
    assert speculator.complete(IDS, max_new_tokens=4, do_sample=False).tokens == whole


@pytest.mark.parametrize(
    "options, match",
    [
        ({"rule": "gready"}, "no rule is called 'gready'"),
        ({"rule": None}, "a rule is a name .* or an object with accept"),
        ({"rule": Greedy}, "a rule is a name .* got <class"),
        ({"drafter": None}, "a drafter is a name .* got None"),
        ({"drafter": NoneDrafter}, "a drafter is a name .* got the class NoneDrafter"),
        ({"drafter": tiny_llama()}, "got a LlamaForCausalLM; a small model goes in as drafter='model'"),
        ({"drafter": "model", "drafter_options": "x"}, "drafter_options must be a dictionary .* got 'x'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_no_rule_or_drafter_is_refused_when_the_speculator_is_made(options, match):
    with pytest.raises(ValueError, match=match):
        Speculator(tiny_llama(), **options)


def test_a_streamer_serves_one_sequence(speculator):
    refused(speculator, "one sequence at a time", torch.cat([IDS, IDS]), streamer=object())


def test_a_stream_serves_one_sequence(speculator):
    with NoForwards(speculator.model), pytest.raises(ValueError, match="one sequence at a time"):
        speculator.stream(torch.cat([IDS, IDS]), max_new_tokens=4)


def test_a_model_in_training_mode_is_refused_also_when_it_was_switched_later():
    model = tiny_llama()
    speculator = Speculator(model, budget=5)
    model.train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        speculator.generate(IDS, max_new_tokens=4)
    assert speculator.target.cache.lanes == ()
