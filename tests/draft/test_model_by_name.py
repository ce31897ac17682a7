"""From a name and two tokenizers to a drafter; wrong combinations are refused before anything is loaded or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpe_tokenizers import byte_level_bpe
from branchwise import Speculator, generate
from branchwise.draft import DRAFTERS, SmallModelDrafter, TextBridge, make_drafter
from branchwise.draft.registry import check_drafter_name
from branchwise.draft.small_model_by_name import small_model_drafter
from branchwise.hub import load
from tiny_folder import CHARACTERS, SPECIAL, character_tokenizer, save_tiny_model
from zoo import tiny_llama

pytestmark = pytest.mark.core

IDS = len(SPECIAL) + len(CHARACTERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("small"))


def test_the_same_tokenizer_shares_ids_and_another_goes_through_text(folder):
    same = small_model_drafter(str(folder), target_tokenizer=character_tokenizer())
    assert isinstance(same, SmallModelDrafter) and same.kind.name == "dynamic"
    other = small_model_drafter(str(folder), target_tokenizer=byte_level_bpe(400), tree="chain")
    assert isinstance(other, TextBridge) and other.is_deterministic
    with pytest.raises(ValueError, match="sampled tree cannot be drafted through text"):
        small_model_drafter(str(folder), target_tokenizer=byte_level_bpe(400), tree="sampled")


def test_a_speculator_hands_its_tokenizer_on(folder):
    model, tokenizer = load(str(folder), dtype="float64")
    prompt = tokenizer("hello there").input_ids
    plain = Speculator(model, drafter="none").complete(prompt, max_new_tokens=12, do_sample=False).tokens
    for drafter in ("model", "mixed", "auto", "sampled"):
        options = {"draft_model": str(folder), "dtype": "float64"}
        speculator = Speculator(model, tokenizer, drafter=drafter, drafter_options=options, budget=9)
        assert speculator.complete(prompt, max_new_tokens=12, do_sample=False).tokens == plain, drafter
    output = generate(
        model,
        tokenizer("hello there", return_tensors="pt").input_ids,
        tokenizer=tokenizer,
        drafter="model",
        drafter_options={"draft_model": str(folder), "tree": "chain"},
        budget=5,
        max_new_tokens=12,
        do_sample=False,
    )
    assert tuple(output[0, len(prompt) :].tolist()) == plain


def test_without_tokenizers_a_loaded_model_is_taken_at_its_word():
    assert isinstance(make_drafter("model", draft_model=tiny_llama()), SmallModelDrafter)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("model", {}, "needs a small model.*--draft-model NAME"),
        ("ngram", {"draft_model": "default"}, "'ngram' takes no draft model; those that do are model, mixed"),
        ("mixed", {"depth": 3}, r"\['depth'\] are options of a draft model, but there is none"),
        ("mixed", {"tree": "dynamic"}, "'best_first' or 'chain' without a draft model, got 'dynamic'"),
        ("ngram", {"tree": "sampled"}, "got 'sampled'"),
        ("sampled", {"tree": "chain"}, "grows its own trees; leave tree='chain' out"),
        ("none", {"tree": "chain"}, "'none' has no such option.*'tree'"),
        ("oracle9", {}, f"there are {', '.join(DRAFTERS)}"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, says):
    with pytest.raises(ValueError, match=says):
        make_drafter(name, **options)


def test_a_missing_tokenizer_is_an_error_and_not_a_guess(folder):
    with pytest.raises(ValueError, match="cannot be told without target_tokenizer"):
        Speculator(tiny_llama(vocab_size=IDS), drafter="model", drafter_options={"draft_model": str(folder)})
    with pytest.raises(ValueError, match="cannot be told without draft_tokenizer"):
        small_model_drafter(tiny_llama(), target_tokenizer=character_tokenizer())
    for option in ("dtype", "device"):
        with pytest.raises(ValueError, match=f"{option}=x is for a draft model given by name"):
            small_model_drafter(tiny_llama(), **{option: "x"})
    Speculator(tiny_llama(), drafter="model", drafter_options={"draft_model": tiny_llama()})


def test_draws_are_not_drawn_from_draws():
    with pytest.raises(ValueError, match="mix it without 'sampled'"):
        make_drafter("sampled", draft_model=tiny_llama(), tree="sampled")


def test_names_are_checked_before_anything_is_loaded():
    check_drafter_name("mixed", with_model=True)
    check_drafter_name("model", with_model=True)
    with pytest.raises(ValueError, match="needs a small model"):
        check_drafter_name("model")
    with pytest.raises(ValueError, match="takes no draft model"):
        check_drafter_name("none", with_model=True)
