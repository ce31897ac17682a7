"""`branchwise.generate` in the place of ``model.generate``: the same arguments, defaults and return values."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput, MaxLengthCriteria

import branchwise
from branchwise import Generation, SpeculativeOutput, Speculator
from loop_rig import WildTrees
from processors import BanPrefixSum
from zoo import SUPPORTED, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
IDS = torch.tensor([PROMPT])
BATCH = torch.tensor([PROMPT, [1, 2, 3, 4, 5, 6, 7, 8, 9]])
NEW = 12


@pytest.fixture(scope="module")
def model():
    return tiny_llama(seed=2)


@pytest.fixture
def defaults(model):
    """The model's own generation config, put back afterwards."""
    own = model.generation_config
    model.generation_config = copy.deepcopy(own)
    yield model.generation_config
    model.generation_config = own


def both(model, ids=IDS, **options):
    """transformers' output and ours, through trees that are accepted now and then."""
    expected = model.generate(ids, **options)
    sequences = expected if torch.is_tensor(expected) else expected.sequences
    width = ids.shape[1]
    futures = {tuple(row[:width].tolist()): row[width:].tolist() for row in sequences}
    return expected, branchwise.generate(model, ids, drafter=WildTrees(futures, right=0.8), budget=12, **options)


# what is asked


@pytest.mark.parametrize("name", ["keywords", "config", "config and keyword", "model's config", "inputs"])
def test_settings_may_come_from_anywhere(model, defaults, name):
    options = {
        "keywords": {"max_new_tokens": 5, "do_sample": False, "repetition_penalty": 1.4},
        "config": {"generation_config": GenerationConfig(max_new_tokens=5, do_sample=False, repetition_penalty=1.4)},
        "config and keyword": {
            "generation_config": GenerationConfig(max_new_tokens=9, do_sample=False, repetition_penalty=1.4),
            "max_new_tokens": 5,
        },
        "model's config": {},
        "inputs": {"max_new_tokens": 5, "do_sample": False, "repetition_penalty": 1.4},
    }[name]
    if name == "model's config":
        defaults.update(max_new_tokens=5, do_sample=False, repetition_penalty=1.4)
    expected, output = both(model, **options)
    if name == "inputs":
        output = branchwise.generate(model, inputs=IDS, **options)
    assert torch.equal(output, expected)
    assert output.shape[1] == len(PROMPT) + 5


def test_nothing_asked_is_twenty_tokens_as_transformers_has_it(model):
    expected, output = both(model)
    assert torch.equal(output, expected)
    assert output.shape[1] == len(PROMPT) + 20


def test_without_a_prompt_the_text_starts_from_the_bos_token(model, defaults):
    defaults.bos_token_id = 1
    expected = model.generate(max_new_tokens=6, do_sample=False)
    assert torch.equal(branchwise.generate(model, max_new_tokens=6, do_sample=False), expected)
    assert expected[0, 0] == 1


def test_sampling_defaults_of_the_models_config_are_honoured(model, defaults):
    """As downloaded chat models have them: do_sample, a temperature and a top-k in generation_config.json."""
    asked = {"do_sample": True, "temperature": 0.7, "top_k": 3}
    speculator = Speculator(model, budget=9)
    expected = speculator.complete(PROMPT, seed=5, max_new_tokens=NEW, **asked).tokens
    plain = speculator.complete(PROMPT, seed=5, max_new_tokens=NEW, do_sample=True, top_k=0).tokens
    defaults.update(**asked)
    assert speculator.complete(PROMPT, seed=5, max_new_tokens=NEW).tokens == expected != plain
    greedy = speculator.complete(PROMPT, seed=5, max_new_tokens=NEW, do_sample=False).tokens
    assert list(greedy) == model.generate(IDS, max_new_tokens=NEW, do_sample=False)[0, len(PROMPT) :].tolist()


def test_processors_and_criteria_of_the_user_are_used(model):
    expected, output = both(
        model,
        max_new_tokens=NEW,
        do_sample=False,
        logits_processor=LogitsProcessorList([BanPrefixSum()]),
        stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(max_length=len(PROMPT) + 7)]),
    )
    assert torch.equal(output, expected)
    assert output.shape[1] == len(PROMPT) + 7


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_any_whole_number_type_of_ids(model, dtype):
    output = branchwise.generate(model, IDS.to(dtype), max_new_tokens=4, do_sample=False)
    assert output[0].tolist() == model.generate(IDS, max_new_tokens=4, do_sample=False)[0].tolist()


def test_a_prompt_may_be_a_plain_vector_or_list(model):
    expected = model.generate(IDS, max_new_tokens=4, do_sample=False)
    assert torch.equal(branchwise.generate(model, IDS[0], max_new_tokens=4, do_sample=False), expected)
    assert torch.equal(branchwise.generate(model, [PROMPT], max_new_tokens=4, do_sample=False), expected)


def test_a_neutral_value_of_something_refused_is_no_reason_to_refuse(model):
    neutral = {"guidance_scale": 1.0, "penalty_alpha": 0.0, "num_beams": 1, "use_cache": True, "synced_gpus": False}
    neutral |= {"assistant_model": None, "cache_implementation": None, "output_attentions": False}
    expected, output = both(model, max_new_tokens=4, do_sample=False, **neutral)
    assert torch.equal(output, expected)


# what comes back


@pytest.mark.parametrize("ids", [IDS, BATCH], ids=["one", "two"])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_scores_and_logits_are_transformers_own(family, ids, penalty):
    model = build(next(f for f in SUPPORTED if f.model_type == family), seed=2)
    if family == "gemma2":
        model.set_attn_implementation("eager")  # older versions choose sdpa, which drops the soft cap
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected, output = both(model, ids, max_new_tokens=NEW, do_sample=False, repetition_penalty=penalty, **options)
    assert isinstance(output, SpeculativeOutput) and isinstance(output, GenerateDecoderOnlyOutput)
    assert torch.equal(output.sequences, expected.sequences)
    for name in ("scores", "logits"):
        ours, theirs = output[name], expected[name]
        assert isinstance(ours, tuple) and len(ours) == len(theirs) == NEW
        for mine, own in zip(ours, theirs, strict=True):
            assert mine.dtype == own.dtype == torch.float32
            torch.testing.assert_close(mine, own, rtol=1e-6, atol=1e-6)
    assert not torch.equal(output.scores[3], output.logits[3]) or penalty == 1.0


def test_only_what_was_asked_for_comes_back(model):
    options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    plain = branchwise.generate(model, IDS, **options)
    assert plain.scores is None and plain.logits is None
    assert set(plain.keys()) == {"sequences", "branchwise"}
    scores = branchwise.generate(model, IDS, output_scores=True, **options)
    assert len(scores.scores) == 4 and scores.logits is None
    assert torch.is_tensor(branchwise.generate(model, IDS, max_new_tokens=4, output_scores=True))


def test_scores_of_a_row_that_ended_early_stay_as_long_as_its_text(model):
    free = model.generate(BATCH, max_new_tokens=NEW, do_sample=False)[:, 9:].tolist()
    eos = next(token for i, token in enumerate(free[0][:6]) if token not in free[1] and i > 1)
    output = branchwise.generate(
        model, BATCH, max_new_tokens=NEW, do_sample=False, eos_token_id=eos, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    ended = free[0].index(eos) + 1
    assert len(output.branchwise[0].tokens) == ended
    assert len(output.scores) == NEW
    assert bool((output.scores[ended][0] == 0).all()) and not bool((output.scores[ended][1] == 0).all())


def test_log_probabilities_from_scores_are_those_of_plain_decoding(model):
    """`compute_transition_scores` is how transformers users get log-probabilities."""
    options = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": NEW, "do_sample": False}
    expected, output = both(model, BATCH, **options)
    ours = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    theirs = model.compute_transition_scores(expected.sequences, expected.scores, normalize_logits=True)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_the_statistics_of_one_sequence_are_a_generation(model):
    output = branchwise.generate(model, IDS, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True)
    generation = output.branchwise
    assert isinstance(generation, Generation)
    assert generation.tokens == tuple(output.sequences[0, len(PROMPT) :].tolist())
    assert generation.tokens_per_step == NEW / generation.steps
    assert generation.decode_seconds > 0 and generation.prefill_seconds > 0
    assert 0 <= generation.overhead_share < 1
    assert all(record.output is None for record in generation.records), "the target's tensors are not kept"


# what is left behind


def test_nothing_of_the_users_is_changed(model):
    config = GenerationConfig(max_new_tokens=6, do_sample=False, stop_strings=None, bad_words_ids=[[3]])
    processors, criteria = LogitsProcessorList([BanPrefixSum()]), StoppingCriteriaList([MaxLengthCriteria(99)])
    ids = torch.tensor([[0, 0, 7, 3, 11], [1, 2, 3, 4, 5]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = {
        "attention_mask": mask,
        "generation_config": config,
        "logits_processor": processors,
        "stopping_criteria": criteria,
        "pad_token_id": 0,
    }
    before = copy.deepcopy(
        {"config": config.to_dict(), "own": model.generation_config.to_dict(), "ids": ids, "mask": mask}
    )
    items = dict(options)
    branchwise.generate(model, ids, drafter="ngram", budget=5, **options)
    assert options == items
    assert config.to_dict() == before["config"]
    assert model.generation_config.to_dict() == before["own"]
    assert torch.equal(ids, before["ids"]) and torch.equal(mask, before["mask"])
    assert len(processors) == 1 and len(criteria) == 1


def test_a_config_with_stop_strings_is_not_changed(model):
    from tiny_folder import character_tokenizer

    config = GenerationConfig(max_new_tokens=4, do_sample=False, stop_strings=["zz"])
    before = copy.deepcopy(config.to_dict())
    branchwise.generate(model, IDS, tokenizer=character_tokenizer(), generation_config=config)
    assert config.to_dict() == before


def test_a_speculator_that_is_kept_gives_the_same_output_and_learns(model):
    """Recycling and the adaptive budget carry over; the text does not change."""
    speculator = Speculator(model)
    outputs = [speculator.complete(PROMPT, max_new_tokens=40, do_sample=False) for _ in range(3)]
    expected = model.generate(IDS, max_new_tokens=40, do_sample=False)[0, len(PROMPT) :].tolist()
    assert [list(output.tokens) for output in outputs] == [expected] * 3


# exact ties


@pytest.mark.parametrize("budget", [1, 5, 13])
def test_exactly_tied_logits_are_broken_as_transformers_breaks_them(budget):
    """Two pairs of tokens with the same row of the head: whenever one of them is best, so is the other."""
    model = tiny_llama(seed=2)
    untied = model.generate(BATCH, max_new_tokens=24, do_sample=False)[:, 9:].flatten().tolist()
    often = max(set(untied), key=untied.count)
    head = model.get_output_embeddings().weight.data
    for twin in (36, 0):  # a twin with a higher id and one with a lower
        head[twin] = head[often]
    expected = model.generate(BATCH, max_new_tokens=24, do_sample=False)
    new = expected[:, 9:].flatten().tolist()
    assert often != 0 and 0 in new and often not in new and 36 not in new, "ties go to the lowest id"
    futures = {tuple(row[:9].tolist()): row[9:].tolist() for row in expected}
    # drafts that hold the other twins, which are just as good but not what transformers writes
    wrong = {prompt: [{0: often}.get(token, token) for token in future] for prompt, future in futures.items()}
    for drafter in (WildTrees(futures, right=0.8), WildTrees(wrong, right=0.8), "mixed"):
        output = branchwise.generate(model, BATCH, drafter=drafter, budget=budget, max_new_tokens=24, do_sample=False)
        assert torch.equal(output, expected)


def test_ties_that_only_float32_has_are_broken_as_transformers_breaks_them():
    """transformers takes the best of float32 scores, also of a float64 model."""
    model = tiny_llama(seed=2)
    head = model.get_output_embeddings().weight.data
    untied = model.generate(IDS, max_new_tokens=24, do_sample=False)[0, 9:].tolist()
    often = max(set(untied), key=untied.count)
    head[0] = head[often] * (1 - 1e-12)  # just below, and equal once rounded
    expected = model.generate(IDS, max_new_tokens=24, do_sample=False)
    assert 0 in expected[0, 9:]
    output = branchwise.generate(model, IDS, budget=9, max_new_tokens=24, do_sample=False)
    assert torch.equal(output, expected)
