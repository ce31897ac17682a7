"""Generating under a grammar: always legal, the same with and without drafts, forced text for free."""

from __future__ import annotations

import json
import math

import pytest
import torch
from transformers import PreTrainedModel
from transformers.generation import LogitsProcessor

from branchwise import Grammar, Speculator, custom_generate, generate
from branchwise.decode.request import Request
from branchwise.decode.stopping import StopRules
from branchwise.draft.adversary import AdversaryDrafter
from branchwise.verify import Greedy, Sampler
from drafters import RandomTrees
from grammar_rig import BOS, EOS, LANGUAGE, MODEL_VOCAB, PATTERN, legal_by_list, piece_tokenizer, text_of, token_of
from loop_rig import start_session
from oracles import logits_by_recompute
from tiny_tokenizers import byte_tokenizer
from zoo import tiny_llama

TOKENIZER = piece_tokenizer()
#: texts without end: the model decides when to stop
ENDLESS = "((a|ab|b)([12]{1,3}|bb)(x1?x)?,)*"
PROMPTS = ([BOS, 5], [BOS, 9, 9, 4], [7], [BOS, 4, 12, 30, 6, 6, 6])
DRAFTERS = ("ngram", "recycling", "mixed", "static", "random", "adversary")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    model = tiny_llama()
    model.generation_config.eos_token_id = EOS
    return model


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar.from_regex(PATTERN)


@pytest.fixture(scope="module")
def endless() -> Grammar:
    return Grammar.from_regex(ENDLESS)


def drafter_named(name: str) -> object:
    return {"random": RandomTrees(3), "adversary": AdversaryDrafter()}.get(name, name)


def speculator(model: PreTrainedModel, drafter: str = "mixed", **options: object) -> Speculator:
    return Speculator(model, TOKENIZER, drafter=drafter_named(drafter), **{"budget": 12, **options})


def constrained_by_recompute(model: PreTrainedModel, prompt: list[int], new_tokens: int) -> list[int]:
    """The oracle: the best token among those that the listed language allows, everything run again for every token."""
    output: list[int] = []
    while len(output) < new_tokens and EOS not in output:
        allowed = sorted(legal_by_list(output))
        scores = logits_by_recompute(model, [*prompt, *output])[-1].float()
        output.append(allowed[int(scores[allowed].argmax())])
    return output


# equal to plain decoding


@pytest.mark.parametrize("drafter", ["none", *DRAFTERS])
def test_greedy_is_the_best_legal_text(model: PreTrainedModel, grammar: Grammar, drafter: str) -> None:
    for prompt in PROMPTS:
        made = speculator(model, drafter).complete(prompt, grammar=grammar, max_new_tokens=20, do_sample=False)
        assert list(made.tokens) == constrained_by_recompute(model, prompt, 20)
        assert made.text in LANGUAGE and made.tokens[-1] == EOS
        assert (made.finish_reason, made.stop_cause) == ("stop", "stop_token")


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False},
        {"do_sample": False, "repetition_penalty": 1.4},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.6, "top_k": 4, "top_p": 0.9},
        {"do_sample": True, "temperature": 1.5, "min_p": 0.05, "typical_p": 0.9, "repetition_penalty": 1.2},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_drafts_change_no_token(model: PreTrainedModel, endless: Grammar, drafter: str, settings: dict) -> None:
    settings = {"max_new_tokens": 40, "grammar": endless, "seed": 11, **settings}
    drafting = speculator(model, drafter)
    texts = set()
    for seed, prompt in enumerate(PROMPTS):
        settings["seed"] = seed
        plain = speculator(model, "none").complete(prompt, **settings)
        made = drafting.complete(prompt, **settings)
        assert made.tokens == plain.tokens
        assert_legal(endless, made.tokens)
        texts.add(made.text)
    assert len(texts) > 1


# "typical" says that it is lossy, which is no news here
@pytest.mark.filterwarnings("ignore:rule 'typical' is lossy")
@pytest.mark.parametrize("rule", ["multiround", "rejection", "traversal", "typical"])
def test_every_rule_keeps_to_the_grammar(model: PreTrainedModel, grammar: Grammar, rule: str) -> None:
    for seed in range(12):
        made = speculator(model, "mixed", rule=rule).complete(
            PROMPTS[seed % 4], grammar=grammar, max_new_tokens=20, do_sample=True, temperature=1.5, seed=seed
        )
        assert made.text in LANGUAGE


def test_greedy_equals_transformers_with_xgrammar_s_own_processor() -> None:
    import xgrammar

    tokenizer = byte_tokenizer([b'":', b'", "', b"na", b"me", b"ag", b'{"', b"ru"])
    model = tiny_llama(vocab_size=272)
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
            "ok": {"type": "boolean"},
        },
        "required": ["name", "age", "ok"],
        "additionalProperties": False,
    }
    grammar = Grammar.from_json_schema(schema)
    handle = grammar.compile(tokenizer, 272).handle
    for prompt in ([65, 66], [100], [34, 58, 257]):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False,
            eos_token_id=tokenizer.eos_token_id, logits_processor=[xgrammar.contrib.hf.LogitsProcessor(handle)],
        )  # fmt: skip
        made = generate(
            model, ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False, tokenizer=tokenizer,
            grammar=grammar, budget=16, return_dict_in_generate=True,
        )  # fmt: skip
        assert made.sequences.tolist() == expected.tolist()
        value = json.loads(made.branchwise.text)
        assert list(value) == ["name", "age", "ok"] and 0 <= value["age"] <= 99 and isinstance(value["ok"], bool)
        assert made.branchwise.tokens_per_step > 1.5


def assert_legal(grammar: Grammar, tokens: tuple[int, ...]) -> None:
    grammar.compile(TOKENIZER, MODEL_VOCAB).start().advance(tokens)  # raises where one is not


# inside a step


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("name", ["mixed", "random"])
def test_the_state_after_every_step_is_the_replay(
    model: PreTrainedModel, endless: Grammar, name: str, do_sample: bool
) -> None:
    from branchwise.draft.registry import make_drafter
    from branchwise.verify import Match

    compiled = endless.compile(TOKENIZER, MODEL_VOCAB)
    session = start_session(model, make_drafter(drafter_named(name)), tokenizer=TOKENIZER)
    for seed, prompt in enumerate(PROMPTS):
        sampler = Sampler(do_sample)
        stop = StopRules(40, stop_tokens=frozenset([EOS]))
        session.add(
            Request(tuple(prompt), sampler, stop, seed=seed, grammar=compiled), Match() if do_sample else Greedy()
        )
    steps = 0
    while session.active:
        for lane in session.step():
            state = lane.context.grammar
            assert state is not None and state.tokens == lane.generated
            replay = compiled.start()
            for token in lane.generated:
                replay.advance([token])
            if state.is_over:
                assert replay.is_over and lane.stop is not None
                continue
            mask, expected = state.mask(()), replay.mask(())
            assert mask is not None and expected is not None and torch.equal(mask, expected)
            told = [s._matcher._debug_print_internal_state() for s in (state, replay)]
            assert told[0] == told[1]
            steps += 1
    assert steps > 10


@pytest.mark.parametrize("name", ["random", "adversary", "mixed"])
def test_illegal_children_cost_no_forward(
    model: PreTrainedModel, grammar: Grammar, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tree that reaches the target is looked at, with the tokens committed before it."""
    from branchwise.target import HuggingFaceTarget

    seen = []
    forward = HuggingFaceTarget.forward

    def watch(self, trees, *rest):
        seen.extend(trees.values())
        return forward(self, trees, *rest)

    monkeypatch.setattr(HuggingFaceTarget, "forward", watch)
    drafted = 0
    for prompt in PROMPTS:
        seen.clear()
        made = speculator(model, name, budget=30).complete(prompt, grammar=grammar, max_new_tokens=20, do_sample=False)
        committed: list[int] = []
        for tree, record in zip(seen, made.records, strict=True):
            assert tree is record.draft.tree
            for node in range(1, len(tree)):
                path = [tree.tokens[i] for i in tree.path(node)[1:]]
                assert path[-1] in legal_by_list([*committed, *path[:-1]])
                drafted += 1
            committed.extend(record.tokens)
    assert drafted > 0 or name == "adversary"


@pytest.mark.parametrize("drafter", ["ngram", "recycling", "mixed"])
def test_forced_text_costs_no_forward_of_its_own(model: PreTrainedModel, drafter: str) -> None:
    grammar = Grammar.from_ebnf('root ::= "xx{xx}xx{xx}" ("a" | "b") "::::x"')
    made = speculator(model, drafter, budget=27).complete([BOS, 5], grammar=grammar, max_new_tokens=40, do_sample=False)
    plain = speculator(model, "none").complete([BOS, 5], grammar=grammar, max_new_tokens=40, do_sample=False)
    assert made.tokens == plain.tokens and len(made.tokens) == 12 + 1 + 5 + 1
    assert plain.steps == len(plain.tokens)
    assert made.steps == 1, "twelve forced tokens, both choices, what follows each, and the stop token: one tree"
    assert set(made.records[0].draft.sources) == {"grammar"}


def test_the_stop_token_comes_where_the_text_is_complete_and_only_there(model: PreTrainedModel) -> None:
    made = speculator(model, "none").complete(
        [BOS, 5], grammar=Grammar.from_regex("12"), max_new_tokens=20, do_sample=False
    )
    assert text_of(made.tokens) == "12" and made.tokens[-1] == EOS
    cut = speculator(model).complete([BOS, 5], grammar=Grammar.from_regex("x{9}"), max_new_tokens=4, do_sample=False)
    assert cut.tokens == (token_of("x"),) * 4 and cut.finish_reason == "length"


def test_a_model_without_a_stop_token_ends_by_the_tokenizer_s(grammar: Grammar) -> None:
    model = tiny_llama()
    assert model.generation_config.eos_token_id is None
    made = speculator(model).complete([BOS, 5], grammar=grammar, max_new_tokens=30, do_sample=False)
    assert made.tokens[-1] == EOS and made.tokens.count(EOS) == 1 and made.stop_cause == "stop_token"


# the public ways in


def test_rows_of_a_batch_each_have_their_own_place(model: PreTrainedModel, endless: Grammar) -> None:
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in PROMPTS])
    settings = {"grammar": endless, "max_new_tokens": 24, "do_sample": True, "seed": 4, "rule": "match"}
    made = generate(model, ids, attention_mask=mask, tokenizer=TOKENIZER, num_return_sequences=2, **settings,
                    return_dict_in_generate=True)  # fmt: skip
    alone = [
        speculator(model, "none", rule="match").generate(
            torch.tensor([prompt]), grammar=endless, max_new_tokens=24, do_sample=True, seed=4, num_return_sequences=2,
            return_dict_in_generate=True,
        ).branchwise
        for prompt in PROMPTS
    ]  # fmt: skip
    expected = [generation.tokens for pair in alone for generation in pair]
    assert [generation.tokens for generation in made.branchwise] == expected
    assert len(set(expected)) > len(PROMPTS), "return index tells them apart"


def test_streams_and_custom_generate(model: PreTrainedModel, grammar: Grammar) -> None:
    expected = speculator(model, "none").complete(PROMPTS[1], grammar=grammar, max_new_tokens=20, do_sample=False)
    pieces = list(
        speculator(model).stream(torch.tensor([PROMPTS[1]]), grammar=grammar, max_new_tokens=20, do_sample=False)
    )
    assert "".join(pieces) == expected.text
    ids = torch.tensor([PROMPTS[1]])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), custom_generate=custom_generate, grammar=grammar, max_new_tokens=20,
        do_sample=False, branchwise_tokenizer=TOKENIZER,
    )  # fmt: skip
    assert made[0, len(PROMPTS[1]) :].tolist() == list(expected.tokens)


def test_a_kept_speculator_goes_back_and_forth(model: PreTrainedModel, grammar: Grammar, endless: Grammar) -> None:
    kept = speculator(model)
    for one in (grammar, None, endless, grammar, None):
        settings = {"grammar": one, "max_new_tokens": 16, "do_sample": False}
        expected = speculator(model, "none").complete(PROMPTS[3], **settings).tokens
        assert kept.complete(PROMPTS[3], **settings).tokens == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grammar": "a+"}, "must be a branchwise.Grammar .* got str"),
        ({"forced_eos_token_id": EOS}, "ForcedEOSTokenLogitsProcessor writes a token whatever the grammar says"),
    ],
)
def test_what_cannot_be_honoured_is_refused(model: PreTrainedModel, grammar: Grammar, options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        speculator(model).complete([BOS, 5], **{"grammar": grammar, "max_new_tokens": 9, **options})


def test_a_grammar_needs_a_tokenizer(model: PreTrainedModel, grammar: Grammar) -> None:
    with pytest.raises(ValueError, match="needs the model's tokenizer: pass tokenizer="):
        Speculator(model).complete([BOS, 5], grammar=grammar, max_new_tokens=4)
    with pytest.raises(ValueError, match="compiled for 40 ids but the model has 37"):
        start_session(model, drafter_named("random")).add(
            Request((BOS, 5), Sampler(), StopRules(4), grammar=grammar.compile(TOKENIZER, 40)), Greedy()
        )


@pytest.mark.parametrize("drafter", ["none", "mixed"])
def test_a_text_that_has_to_go_on_but_must_not_is_an_error_and_frees_the_lane(
    model: PreTrainedModel, drafter: str
) -> None:
    made = speculator(model, drafter)
    with pytest.raises(ValueError, match="forbade every token that the grammar allows"):
        made.complete([BOS, 5], grammar=Grammar.from_regex("12"), max_new_tokens=20, min_new_tokens=9, do_sample=False)
    again = made.complete([BOS, 5], grammar=Grammar.from_regex("12"), max_new_tokens=20, do_sample=False)
    assert text_of(again.tokens) == "12"


def test_a_user_s_processor_sees_legal_tokens_only(model: PreTrainedModel, grammar: Grammar) -> None:
    class Watch(LogitsProcessor):
        def __call__(self, input_ids, scores):
            allowed = set((scores[0] > -math.inf).nonzero()[:, 0].tolist())
            output = input_ids[0, 2:].tolist()
            assert EOS in output or allowed == legal_by_list(output)
            return scores

    made = speculator(model).complete(
        [BOS, 5], grammar=grammar, max_new_tokens=20, do_sample=False, logits_processor=[Watch()]
    )
    assert made.text in LANGUAGE
