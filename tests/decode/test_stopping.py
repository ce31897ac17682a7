"""Where generation ends: exactly where plain decoding would have ended, also in the middle of an accepted run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, MaxTimeCriteria, StoppingCriteria, StoppingCriteriaList

from branchwise import Speculator
from branchwise.decode.request import Request
from branchwise.decode.session import Session
from branchwise.decode.stopping import StopRules
from branchwise.tune.budget import FixedBudget
from branchwise.verify.greedy import Greedy
from branchwise.verify.law import Sampler
from drafters import Scripted
from loop_rig import RunsOf, ScriptedTarget, finish
from oracles import greedy_by_recompute
from tiny_folder import CHARACTERS, SPECIAL, character_tokenizer
from tiny_tokenizers import byte_tokenizer
from zoo import SUPPORTED, build, tiny_llama

pytestmark = pytest.mark.core

#: its greedy output under tiny_llama(seed=33) begins with distinct tokens, see `test_the_rig`
PROMPT = [9, 8, 7]
#: merged tokens 256 ... 260: a word, two halves of two characters, two letters, a letter and half a character
BYTES = byte_tokenizer([b" cat", "日本".encode()[:4], "日本".encode()[4:], b"ab", b"c\xc3"])


@pytest.fixture(scope="module")
def model():
    return tiny_llama(seed=33)


@pytest.fixture(scope="module")
def future(model):
    return greedy_by_recompute(model, PROMPT, 24)


def runs_of_five(model, future) -> Speculator:
    """Accepts four drafted tokens at every step, wrong siblings beside them."""
    return Speculator(model, drafter=Scripted({tuple(PROMPT): future}, depth=4, siblings=2), budget=13)


def generated(output: torch.Tensor) -> list[int]:
    return output[0, len(PROMPT) :].tolist()


def plain(model, **options) -> list[int]:
    """transformers' own greedy output."""
    return generated(model.generate(torch.tensor([PROMPT]), do_sample=False, **options))


def test_the_rig(model, future):
    assert len(set(future[:10])) == 10
    output = runs_of_five(model, future).complete(PROMPT, max_new_tokens=10, do_sample=False)
    assert [len(record.tokens) for record in output.records] == [5, 5]


# stop tokens


@pytest.mark.parametrize("index", range(10))
def test_a_stop_token_anywhere_in_an_accepted_run(model, future, index):
    options = {"max_new_tokens": 20, "eos_token_id": future[index]}
    output = runs_of_five(model, future).complete(PROMPT, do_sample=False, **options)
    assert list(output.tokens) == future[: index + 1] == plain(model, **options)
    assert (output.finish_reason, output.stop_cause) == ("stop", "stop_token")
    assert output.steps == 1 + index // 5
    assert output.records[-1].tokens == output.tokens[5 * (index // 5) :], "the record knows only what was emitted"


@pytest.mark.parametrize("first, second", [(3, 7), (7, 3), (4, 5), (9, 0)])
def test_the_first_of_several_stop_tokens_ends_the_text(model, future, first, second):
    options = {"max_new_tokens": 20, "eos_token_id": [future[first], future[second], 36]}
    output = runs_of_five(model, future).complete(PROMPT, do_sample=False, **options)
    assert list(output.tokens) == plain(model, **options)
    assert len(output.tokens) <= min(first, second) + 1


def test_a_stop_token_of_the_models_own_generation_config(model, future):
    try:
        model.generation_config.eos_token_id = [future[6]]
        output = runs_of_five(model, future).complete(PROMPT, max_new_tokens=20, do_sample=False)
        assert list(output.tokens) == future[:7]
    finally:
        model.generation_config.eos_token_id = None


# lengths


@pytest.mark.parametrize("new_tokens", range(1, 8))
def test_max_new_tokens_inside_a_run(model, future, new_tokens):
    output = runs_of_five(model, future).complete(PROMPT, max_new_tokens=new_tokens, do_sample=False)
    assert list(output.tokens) == future[:new_tokens]
    assert (output.finish_reason, output.stop_cause) == ("length", "max_new_tokens")
    # nothing is drafted that could not be emitted
    assert all(record.draft.tree.height < new_tokens - 5 * i for i, record in enumerate(output.records))


@pytest.mark.parametrize("total", [4, 5, 9, 12])
def test_max_length_counts_the_prompt(model, future, total):
    output = runs_of_five(model, future).generate(torch.tensor([PROMPT]), max_length=total, do_sample=False)
    assert generated(output) == future[: total - len(PROMPT)] == plain(model, max_length=total)


@pytest.mark.parametrize("how", ["keyword", "config", "model", "default"])
def test_max_length_counts_padding_and_the_default_does_not(model, how):
    ids, mask = torch.tensor([[0, 0, *PROMPT], [1, 2, 3, 4, 5]]), torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    options = {"attention_mask": mask, "do_sample": False}
    if how == "keyword":
        options["max_length"] = 12
    elif how == "config":
        options = {"attention_mask": mask, "generation_config": GenerationConfig(max_length=12, do_sample=False)}
    try:
        model.generation_config.max_length = 12 if how == "model" else None
        expected = model.generate(ids, **options)
        output = Speculator(model, budget=5).generate(ids, **options)
    finally:
        model.generation_config.max_length = None
    assert expected.shape[1] == (25 if how == "default" else 12)
    assert torch.equal(output, expected)


@pytest.mark.parametrize("least", [1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("how", ["min_new_tokens", "min_length"])
def test_a_stop_token_before_the_least_length_is_never_written(model, future, least, how):
    """The least length counts tokens, not steps, and changes the law of every node before it."""
    options = {"max_new_tokens": 12, "eos_token_id": future[2]}
    options[how] = least if how == "min_new_tokens" else least + len(PROMPT)
    expected = plain(model, **options)
    for drafter in (Scripted({tuple(PROMPT): future}), Scripted({tuple(PROMPT): expected}), "none"):
        output = Speculator(model, drafter=drafter, budget=13).complete(PROMPT, do_sample=False, **options)
        assert list(output.tokens) == expected
    assert (expected == future[:3]) == (least <= 2)


def test_min_length_counts_padding_as_transformers_does(model, future):
    ids, mask = torch.tensor([[0, 0, *PROMPT], [1, 2, 3, 4, 5]]), torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    options = {"max_new_tokens": 9, "eos_token_id": future[2], "min_length": 7, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(Speculator(model, budget=5).generate(ids, attention_mask=mask, **options), expected)
    assert expected[0, 5:8].tolist() == future[:3], "the padding counted"


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma3_text"])
@pytest.mark.parametrize("prompt_tokens", [1, 9, 14, 15])
def test_at_the_context_limit_trees_shrink_and_the_text_ends(name, prompt_tokens):
    """A learned position beyond the table would raise; the limit is 16 tokens, prompt and output together."""
    family = next(family for family in SUPPORTED if family.model_type == name)
    model = build(family, **{"n_positions" if name == "gpt2" else "max_position_embeddings": 16})
    prompt = [(5 * i + 3) % 37 for i in range(prompt_tokens)]
    room = 16 - prompt_tokens
    future = greedy_by_recompute(model, prompt, room)
    for drafter in (Scripted({tuple(prompt): [*future, *range(10)]}, depth=6), "mixed"):
        output = Speculator(model, drafter=drafter, budget=19).complete(prompt, max_new_tokens=50, do_sample=False)
        assert list(output.tokens) == future
        assert (output.finish_reason, output.stop_cause) == ("length", "context_limit")
        done = prompt_tokens
        for record in output.records:
            assert done - 1 + record.draft.tree.height <= 15 - 1
            done += len(record.tokens)


def test_the_smaller_of_two_limits_is_the_cause():
    for limit, asked, cause in ((10, 6, "context_limit"), (10, 5, "context_limit"), (10, 4, "max_new_tokens")):
        rules = StopRules(asked, context_limit=limit)
        room, why = rules.room(5)
        assert (room, why) == (min(asked, 5), cause if asked != 5 else "max_new_tokens")


# criteria


class Recorder(StoppingCriteria):
    """Notes every call; asks to stop once a token was seen."""

    def __init__(self, stop_at: int | None = None, verdict=torch.tensor) -> None:
        self.calls: list[tuple[list[int], int | None]] = []
        self._stop_at = stop_at
        self._verdict = verdict

    def __call__(self, input_ids, scores, **kwargs):
        assert scores is None or all(row.shape == (1, 37) for row in scores)
        self.calls.append((input_ids[0].tolist(), None if scores is None else len(scores)))
        stop = input_ids[0, -1].item() == self._stop_at
        return torch.full((len(input_ids),), stop) if self._verdict is torch.tensor else stop


@pytest.mark.parametrize("scores", [False, True], ids=["without scores", "with scores"])
@pytest.mark.parametrize("index", [None, 0, 1, 3, 4, 5, 8])
@pytest.mark.parametrize("eos_index", [None, 3])
def test_criteria_are_called_once_per_token_with_what_transformers_gives_them(model, future, scores, index, eos_index):
    stop_at = None if index is None else future[index]
    options = {"max_new_tokens": 10, "return_dict_in_generate": scores, "output_scores": scores}
    if eos_index is not None:
        options["eos_token_id"] = future[eos_index]
    own, ours = Recorder(stop_at), Recorder(stop_at)
    ids = torch.tensor([PROMPT])
    model.generate(ids, do_sample=False, stopping_criteria=StoppingCriteriaList([own]), **options)
    output = runs_of_five(model, future).generate(
        ids, do_sample=False, stopping_criteria=StoppingCriteriaList([ours]), **options
    )
    assert ours.calls == own.calls
    sequences = output.sequences if scores else output
    assert sequences[0].tolist() == own.calls[-1][0]


def test_criteria_may_answer_with_a_plain_bool_and_name_the_cause(model, future):
    ours = Recorder(future[2], verdict=bool)
    output = runs_of_five(model, future).complete(
        PROMPT, max_new_tokens=10, do_sample=False, stopping_criteria=StoppingCriteriaList([ours])
    )
    assert list(output.tokens) == future[:3]
    assert (output.finish_reason, output.stop_cause) == ("stop", "criteria")


@pytest.mark.parametrize("how", ["max_time", "criterion"])
def test_time_that_is_up_ends_the_text_after_the_first_token(model, future, how):
    criterion = {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1e-9)])}
    options = {"max_time": 1e-9} if how == "max_time" else criterion
    output = runs_of_five(model, future).complete(PROMPT, max_new_tokens=10, do_sample=False, **options)
    assert list(output.tokens) == future[:1] == plain(model, max_new_tokens=10, **options)
    assert output.stop_cause == "criteria"


def test_in_a_batch_every_row_has_its_own_criteria_calls(model):
    prompts = torch.tensor([PROMPT, [1, 2, 3]])
    futures = {tuple(p): greedy_by_recompute(model, p, 10) for p in prompts.tolist()}
    stop_at = futures[tuple(PROMPT)][4]
    recorder = Recorder(stop_at)
    output = Speculator(model, drafter=Scripted(futures), budget=13).generate(
        prompts, max_new_tokens=8, do_sample=False, stopping_criteria=[recorder], return_dict_in_generate=True
    )
    for prompt, generation in zip(prompts.tolist(), output.branchwise, strict=True):
        known = futures[tuple(prompt)][:8]
        end = known.index(stop_at) + 1 if stop_at in known else 8
        assert list(generation.tokens) == known[:end]
        calls = [ids for ids, _ in recorder.calls if ids[:3] == prompt]
        assert calls == [prompt + known[: n + 1] for n in range(end)]


# stop strings


def run_script(tokens, run_lengths, stop: StopRules, tokenizer=BYTES, prompt_tokens: int = 1):
    """Generates exactly ``tokens`` after a prompt of zeros, in runs of the given lengths; returns the `Generation`."""
    script = [0] * prompt_tokens + list(tokens)
    target = ScriptedTarget(script, vocab_size=len(tokenizer), context_limit=stop.context_limit)
    session = Session(target, RunsOf(script, run_lengths), FixedBudget(64), tokenizer)
    lane = session.add(Request(tuple(script[:prompt_tokens]), Sampler(), stop), Greedy())
    finish(session)
    assert target.lengths == {}
    return session.generation(lane)


def tokens_of(text: str) -> list[int]:
    """The text's bytes, one token each."""
    return list(text.encode())


@pytest.mark.parametrize("runs", [[1], [2], [3], [5], [2, 1, 4], [64]], ids=str)
@pytest.mark.parametrize(
    "tokens, stop, kept_text, kept_tokens",
    [
        (tokens_of("one two three"), "two", "one ", 7),
        (tokens_of("one two three"), " ", "one", 4),
        (tokens_of("aab aaab"), "aaab", "aab ", 8),
        (tokens_of("x日本語"), "日本", "x", 7),
        # the token that completes the string also holds the first byte of the next character
        ([*tokens_of("ab"), 260, 0xA9], "bc", "a", 3),
        # a token of several characters: the string ends inside it, the token is kept whole
        ([256, 256], "ca", " ", 1),
        # the string begins in one merged token and ends in the next
        ([*tokens_of("x"), 257, 258], "日本", "x", 3),
    ],
)
def test_a_stop_string_wherever_it_lies_between_tokens_and_runs(runs, tokens, stop, kept_text, kept_tokens):
    generation = run_script([*tokens, *tokens_of("0123456789")], runs, StopRules(50, stop_strings=(stop,)))
    assert list(generation.tokens) == tokens[:kept_tokens]
    assert generation.text == kept_text
    assert (generation.finish_reason, generation.stop_cause) == ("stop", "stop_string")


def test_a_stop_string_may_be_a_special_token():
    end = BYTES.convert_tokens_to_ids("<|end|>")
    generation = run_script([*tokens_of("a b"), end, *tokens_of("c")], [3], StopRules(9, stop_strings=("<|end|>",)))
    assert list(generation.tokens) == [*tokens_of("a b"), end]
    assert (generation.text, generation.stop_cause) == ("a b", "stop_string")


def test_a_special_token_between_two_halves_is_no_stop_string():
    start = BYTES.convert_tokens_to_ids("<s>")
    generation = run_script([*tokens_of("xa"), start, *tokens_of("by")], [5], StopRules(5, stop_strings=("ab",)))
    assert (generation.text, generation.stop_cause) == ("xaby", "max_new_tokens")


def test_a_string_of_the_prompt_does_not_stop_the_output():
    generation = run_script(tokens_of("bcd"), [3], StopRules(3, stop_strings=("\0",)), prompt_tokens=4)
    assert generation.text == "bcd"


@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_script_ends_where_token_by_token_decoding_ends_it(data):
    """The oracle decodes the whole output again after every token and looks at everything."""
    letters = st.sampled_from([*tokens_of("ab c"), *range(256, 261), 0xC3, 0xA9, *BYTES.all_special_ids])
    tokens = data.draw(st.lists(letters, min_size=20, max_size=20), label="tokens")
    strings = data.draw(st.lists(st.text("abc é日<s>", min_size=1, max_size=3), max_size=2), label="stop strings")
    stop_tokens = data.draw(st.frozensets(letters, max_size=1), label="stop tokens")
    most = data.draw(st.integers(1, 20), label="max_new_tokens")
    context = data.draw(st.none() | st.integers(5, 30), label="context limit")
    rules = StopRules(most, context, stop_tokens, tuple(strings))

    def cause_after(count: int) -> str | None:
        text = BYTES.decode(tokens[:count], clean_up_tokenization_spaces=False)
        if tokens[count - 1] in stop_tokens:
            return "stop_token"
        if any(string in text for string in strings):
            return "stop_string"
        if context is not None and count == context - 4 and context - 4 < most:
            return "context_limit"
        return "max_new_tokens" if count == most else None

    expected = next(count for count in range(1, 21) if cause_after(count))
    runs = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4), label="runs")
    generation = run_script(tokens, runs, rules, prompt_tokens=4)
    assert list(generation.tokens) == tokens[:expected]
    assert generation.stop_cause == cause_after(expected)
    assert generation.finish_reason == ("stop" if generation.stop_cause.startswith("stop") else "length")


@pytest.mark.parametrize("kind", ["letters", "special"])
@pytest.mark.parametrize("where", ["keyword", "config", "model"])
def test_stop_strings_give_transformers_tokens(where, kind):
    tokenizer = character_tokenizer()
    model = tiny_llama(seed=4, vocab_size=len(SPECIAL) + len(CHARACTERS))
    future = greedy_by_recompute(model, PROMPT, 20)
    letter = [token >= len(SPECIAL) for token in future]
    if kind == "letters":
        end = next(i for i in range(6, 20) if letter[i - 1] and letter[i])
        stop = tokenizer.decode(future[end - 1 : end + 1])
    else:
        end = next(i for i in range(6, 20) if not letter[i])
        stop = tokenizer.decode(future[end])
    options = {"max_new_tokens": 20, "do_sample": False}
    if where == "config":
        options = {"generation_config": GenerationConfig(stop_strings=["zzz", stop], **options)}
    elif where == "keyword":
        options["stop_strings"] = [stop]
    try:
        model.generation_config.stop_strings = stop if where == "model" else None
        expected = model.generate(torch.tensor([PROMPT]), tokenizer=tokenizer, **options)
        speculator = Speculator(model, tokenizer, drafter=Scripted({tuple(PROMPT): future}), budget=13)
        output = speculator.generate(torch.tensor([PROMPT]), **options)
    finally:
        model.generation_config.stop_strings = None
    assert torch.equal(output, expected)
    assert expected.shape[1] <= len(PROMPT) + end + 1 < len(PROMPT) + 20


def test_stop_strings_without_a_tokenizer_are_refused(model):
    with pytest.raises(ValueError, match="need a tokenizer"):
        Speculator(model).complete(PROMPT, max_new_tokens=4, stop_strings=["x"])
