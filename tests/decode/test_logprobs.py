"""Log-probabilities of emitted tokens: the model's own, the same with and without drafts."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from branchwise import Grammar, Speculator, custom_generate, generate
from branchwise.decode.logprobs import token_logprobs
from drafters import RandomTrees
from grammar_rig import piece_tokenizer
from oracles import logits_by_recompute
from zoo import VOCAB, tiny_llama

pytestmark = pytest.mark.core

PROMPTS = ([1, 5], [9, 9, 4], [7, 3, 11, 3, 7, 3, 11])
NEW = 20


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_llama()


def speculator(model: PreTrainedModel, drafter: object = "mixed") -> Speculator:
    return Speculator(model, drafter=drafter, budget=12)


@pytest.mark.parametrize("drafter", ["none", "mixed", "random"])
@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False},
        {"do_sample": False, "repetition_penalty": 1.5},
        {"do_sample": True, "temperature": 0.7, "top_k": 5, "seed": 3},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_they_are_the_raw_log_softmax_of_plain_decoding(model: PreTrainedModel, drafter: str, settings: dict) -> None:
    drafting = speculator(model, RandomTrees(1) if drafter == "random" else drafter)
    for prompt in PROMPTS:
        made = drafting.complete(prompt, max_new_tokens=NEW, logprobs=4, **settings)
        assert made.logprobs is not None
        assert tuple(entry.token for entry in made.logprobs) == made.tokens
        rows = logits_by_recompute(model, [*prompt, *made.tokens])[len(prompt) - 1 : -1].log_softmax(-1)
        for entry, row in zip(made.logprobs, rows, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-9)
            best = row.sort(descending=True, stable=True)
            assert [token for token, _ in entry.top] == best.indices[:4].tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values[:4].tolist(), abs=1e-9)


def test_zero_keeps_the_chosen_token_alone_and_none_keeps_nothing(model: PreTrainedModel) -> None:
    made = speculator(model).complete(PROMPTS[0], max_new_tokens=NEW, logprobs=0)
    assert made.logprobs is not None and len(made.logprobs) == NEW
    assert all(entry.top == () for entry in made.logprobs)
    assert speculator(model).complete(PROMPTS[0], max_new_tokens=NEW).logprobs is None


def test_nothing_is_computed_unless_asked_for(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from branchwise.decode import session

    monkeypatch.setattr(session, "token_logprobs", lambda *args: pytest.fail("nobody asked"))
    speculator(model).complete(PROMPTS[0], max_new_tokens=NEW)


def test_a_run_cut_by_a_stop_token_has_no_entries_beyond_it(model: PreTrainedModel) -> None:
    whole = speculator(model, "none").complete(PROMPTS[0], max_new_tokens=NEW, do_sample=False).tokens
    stop = whole[9]
    cut = speculator(model).complete(PROMPTS[0], max_new_tokens=NEW, do_sample=False, eos_token_id=stop, logprobs=1)
    assert cut.tokens == whole[: whole.index(stop) + 1]
    assert cut.logprobs is not None and len(cut.logprobs) == len(cut.tokens)


def test_ties_go_to_the_lowest_ids() -> None:
    logits = torch.zeros(2, 9, dtype=torch.float64)
    logits[1, 5] = 1.0
    one, other = token_logprobs(logits, [3, 5], 3)
    assert [token for token, _ in one.top] == [0, 1, 2]
    assert [token for token, _ in other.top] == [5, 0, 1]
    assert one.logprob == pytest.approx(-torch.tensor(9.0).log().item())


def test_bfloat16_logits_are_read_in_float32() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    entries = token_logprobs(logits, [1, 2, 3], 50)
    exact = logits.double().log_softmax(-1)
    for entry, row in zip(entries, exact, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=2e-6)
        assert sum(torch.tensor([value for _, value in entry.top]).double().exp().tolist()) == pytest.approx(
            1, abs=1e-5
        )


def test_a_grammar_does_not_change_them(model: PreTrainedModel) -> None:
    grammar = Grammar.from_regex("(a|ab|b)*x{3}")
    made = Speculator(model, piece_tokenizer(), budget=12).complete(
        PROMPTS[1], max_new_tokens=NEW, logprobs=2, grammar=grammar, do_sample=False
    )
    rows = logits_by_recompute(model, [*PROMPTS[1], *made.tokens])[len(PROMPTS[1]) - 1 : -1].log_softmax(-1)
    assert made.logprobs is not None
    for entry, row in zip(made.logprobs, rows, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-9)
        assert entry.top[0][0] == int(row.argmax()), "what the grammar forbids is listed, too"


def test_generate_and_custom_generate_return_them_in_the_generation(model: PreTrainedModel) -> None:
    ids = torch.tensor([PROMPTS[1]])
    settings = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 6,
        "return_dict_in_generate": True,
        "logprobs": 1,
    }
    made = generate(model, ids, **settings)
    other = model.generate(ids, custom_generate=custom_generate, **settings)
    assert len(made.branchwise.logprobs) == 6
    pair = generate(model, ids.repeat(2, 1), **{**settings, "attention_mask": torch.ones(2, 3)}).branchwise
    for generation in (other.branchwise, *pair):
        assert generation.tokens == made.branchwise.tokens
        # other trees, other rounding: the budget follows the time
        alone = [entry.logprob for entry in made.branchwise.logprobs]
        assert [entry.logprob for entry in generation.logprobs] == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("wrong", [-1, VOCAB + 1, 1.5, True, "3"])
def test_wrong_counts_are_refused(model: PreTrainedModel, wrong: object) -> None:
    with pytest.raises(ValueError, match="logprobs must be a whole number from 0"):
        speculator(model).complete(PROMPTS[0], max_new_tokens=2, logprobs=wrong)


def test_where_they_would_be_lost_they_are_refused(model: PreTrainedModel) -> None:
    ids = torch.tensor([PROMPTS[0]])
    with pytest.raises(ValueError, match="pass return_dict_in_generate=True"):
        generate(model, ids, max_new_tokens=2, logprobs=1)
    with pytest.raises(ValueError, match="pass return_dict_in_generate=True"):
        model.generate(ids, custom_generate=custom_generate, max_new_tokens=2, logprobs=1)
    with pytest.raises(ValueError, match="not with a stream"):
        speculator(model).stream(ids, max_new_tokens=2, logprobs=1)
