"""The official client against the server: every field that is served does what it says."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from branchwise import Engine, Speculator
from branchwise.serve.penalties import LogitBias, OutputPenalty
from branchwise.serve.schema import CompletionRequest
from branchwise.serve.settings import ServerSettings
from branchwise.serve.translate import Translator
from engine_rig import run
from serve_rig import NAME, model_and_tokenizer, serving
from tiny_tokenizers import byte_tokenizer
from zoo import tiny_llama

MESSAGES = [{"role": "system", "content": "be good"}, {"role": "user", "content": "hello there"}]
CHAT_TEXT = "<|system|>be good<|user|>hello there<|assistant|>"
NEW = 20


@pytest.fixture(scope="module")
def server():
    with serving(prompt_tokens=200) as up:
        yield up


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60) as own:
        yield own


def alone(text: str, chat: bool = False, **options) -> str:
    """What the library gives for the same prompt, drafts off."""
    model, tokenizer = model_and_tokenizer()
    ids = tokenizer(text, add_special_tokens=not chat).input_ids
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    return Speculator(model, tokenizer, drafter="none").complete(ids, **options).text


def tokens_alone(text: str, new_tokens: int) -> tuple[int, ...]:
    model, tokenizer = model_and_tokenizer()
    speculator = Speculator(model, tokenizer, drafter="none")
    return speculator.complete(tokenizer(text).input_ids, max_new_tokens=new_tokens, do_sample=False).tokens


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.owned_by, model.max_model_len) == (NAME, "branchwise", 256)


def test_a_chat(client):
    answer = client.chat.completions.create(model=NAME, messages=MESSAGES, temperature=0, max_tokens=NEW)
    (choice,) = answer.choices
    assert choice.message.content == alone(CHAT_TEXT, chat=True)
    assert (choice.message.role, choice.finish_reason, choice.index) == ("assistant", "length", 0)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (21, NEW)
    assert answer.usage.total_tokens == 21 + NEW


def test_a_streamed_chat_adds_up_to_the_whole(client):
    stream = client.chat.completions.create(
        model=NAME, messages=MESSAGES, temperature=0, max_completion_tokens=NEW, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == alone(CHAT_TEXT, chat=True)
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1 and all(chunk.usage is None for chunk in chunks)


def test_content_in_parts_and_the_developer_role(client):
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
    messages = [{"role": "developer", "content": "be good"}, {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=NEW)
    assert answer.choices[0].message.content == alone(CHAT_TEXT, chat=True)


@pytest.mark.parametrize("stream", [False, True])
def test_usage_at_the_end_and_all_along(client, stream):
    if not stream:
        with pytest.raises(openai.BadRequestError, match="stream_options need stream: true"):
            client.completions.create(model=NAME, prompt="hello", stream_options={"include_usage": True})
        return
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.completions.create(
            model=NAME, prompt="hello", temperature=0, max_tokens=NEW, stream=True, stream_options=options
        )
    )
    seen = [chunk.usage.completion_tokens for chunk in chunks]
    assert seen == sorted(seen) and seen[-1] == NEW
    assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens == 5


def test_prompts_of_every_kind(client):
    ids = model_and_tokenizer()[1]("hello").input_ids
    texts = {}
    for name, prompt in {"text": "hello", "ids": ids, "texts": ["hello", "abc"], "lists": [ids, ids]}.items():
        answer = client.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=NEW)
        texts[name] = [choice.text for choice in answer.choices]
        assert [choice.index for choice in answer.choices] == list(range(len(texts[name])))
    hello = alone("hello")
    assert texts == {"text": [hello], "ids": [hello], "texts": [hello, alone("abc")], "lists": [hello, hello]}


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_and_a_seed(client, stream):
    def ask() -> dict[int, str]:
        answer = client.completions.create(model=NAME, prompt=["ab", "cd"], n=2, seed=7, max_tokens=NEW, stream=stream)
        texts: dict[int, str] = {}
        for choice in (choice for chunk in (answer if stream else [answer]) for choice in chunk.choices):
            texts[choice.index] = texts.get(choice.index, "") + choice.text
        return texts

    first = ask()
    assert sorted(first) == [0, 1, 2, 3] and len(set(first.values())) == 4
    assert first == ask()
    model, tokenizer = model_and_tokenizer()
    ids = tokenizer("ab").input_ids
    plain = Speculator(model, tokenizer, drafter="none").complete(
        ids, max_new_tokens=NEW, do_sample=True, top_k=0, seed=7
    )
    assert first[0] == plain.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_never_shows(client, stream):
    whole = alone("abc", max_new_tokens=60)
    # three characters that no special token parts: stop strings are looked for in the text with special tokens
    raw = model_and_tokenizer()[1].decode(tokens_alone("abc", 60), skip_special_tokens=False)
    stop = next(whole[at : at + 3] for at in range(4, len(whole)) if raw.find(whole[at : at + 3]) >= 0)
    answer = client.completions.create(
        model=NAME, prompt="abc", temperature=0, max_tokens=60, stop=[stop, "#never#"], stream=stream
    )
    chunks = list(answer) if stream else [answer]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_echo(client):
    answer = client.completions.create(model=NAME, prompt="hello", temperature=0, max_tokens=4, echo=True)
    assert answer.choices[0].text == "hello" + alone("hello", max_new_tokens=4)
    stream = client.completions.create(model=NAME, prompt="hello", temperature=0, max_tokens=4, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def expected_logprobs(text: str, count: int):

    model, tokenizer = model_and_tokenizer()
    ids = tokenizer(text).input_ids
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    output = Speculator(model, tokenizer, drafter="none").generate(torch.tensor([ids]), logprobs=count, **options)
    return output.branchwise.logprobs


def test_logprobs_of_a_chat(client):
    answer = client.chat.completions.create(
        model=NAME, messages=MESSAGES, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    told = answer.choices[0].logprobs.content
    assert "".join(one.token for one in told) == answer.choices[0].message.content
    for one in told:
        assert one.logprob == max(other.logprob for other in one.top_logprobs) < 0
        assert len(one.top_logprobs) == 3 and bytes(one.bytes).decode() == one.token
    stream = client.chat.completions.create(
        model=NAME, messages=MESSAGES, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3, stream=True
    )
    streamed = [one for chunk in stream if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in told]
    assert [one.logprob for one in streamed] == pytest.approx([one.logprob for one in told], abs=1e-9)


def test_logprobs_of_a_completion_are_the_models_own(client):
    answer = client.completions.create(model=NAME, prompt="hello", temperature=0, max_tokens=6, logprobs=2)
    told = answer.choices[0].logprobs
    expected = expected_logprobs("hello", 2)
    assert told.token_logprobs == pytest.approx([one.logprob for one in expected], abs=1e-9)
    tokenizer = model_and_tokenizer()[1]
    assert told.tokens == [tokenizer.decode([one.token]) for one in expected]
    assert all(len(top) == 2 and all(math.isfinite(value) for value in top.values()) for top in told.top_logprobs)


def test_penalties_and_biases_change_the_text_as_they_say(client):
    def ask(**options) -> str:
        answer = client.completions.create(model=NAME, prompt="aaaa", temperature=0, max_tokens=NEW, **options)
        return answer.choices[0].text

    tokenizer = model_and_tokenizer()[1]
    z = tokenizer("z").input_ids[0]
    assert ask(logit_bias={str(z): 100}) == "z" * NEW
    assert ask(logit_bias={str(z): 100}, presence_penalty=2, frequency_penalty=2).count("z") >= NEW - 2
    expected = alone("aaaa", logits_processor=[OutputPenalty(4, frequency=1.5, presence=1)])
    assert ask(frequency_penalty=1.5, presence_penalty=1) == expected != alone("aaaa")
    assert ask(extra_body={"repetition_penalty": 1.5}) == alone("aaaa", repetition_penalty=1.5)


def test_output_penalties_are_those_of_the_definition():
    scores = torch.zeros(1, 5, dtype=torch.float64)
    prefix = torch.tensor([[1, 1, 2, 3, 3]])
    assert OutputPenalty(2, frequency=0.5, presence=0.25)(prefix, scores)[0].tolist() == [0, 0, -0.75, -1.25, 0]
    assert LogitBias({4: 2.5, 0: -1.0})(prefix, scores)[0].tolist() == [-1, 0, 0, 0, 2.5]
    assert not scores.any(), "what was given is not written to"


def test_truncations_reach_the_law(client):
    model, tokenizer = model_and_tokenizer()
    answer = client.completions.create(
        model=NAME,
        prompt="abc",
        max_tokens=NEW,
        seed=3,
        temperature=1.5,
        top_p=0.8,
        extra_body={"top_k": 9, "min_p": 0.05},
    )
    expected = Speculator(model, tokenizer, drafter="none").complete(
        tokenizer("abc").input_ids,
        max_new_tokens=NEW,
        do_sample=True,
        seed=3,
        temperature=1.5,
        top_p=0.8,
        top_k=9,
        min_p=0.05,
    )
    assert answer.choices[0].text == expected.text


def test_many_clients_at_once_each_get_their_own(client):
    prompts = [f"prompt {i}" for i in range(12)]

    def ask(prompt: str) -> str:
        stream = client.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=NEW, stream=True)
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, prompts)) == [alone(prompt) for prompt in prompts]


def test_the_async_client(server):
    import asyncio

    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=60) as own:
            stream = await own.completions.create(
                model=NAME, prompt="hello", temperature=0, max_tokens=NEW, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

    assert asyncio.run(ask()) == alone("hello")


def test_json_by_schema():
    # the library that compiles schemas is an extra
    pytest.importorskip("xgrammar", reason="needs xgrammar (extra grammar)")
    tokenizer = byte_tokenizer()
    engine = Engine(tiny_llama(vocab_size=len(tokenizer)), tokenizer, budget=8)
    translator = Translator(engine, ServerSettings(NAME))
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    body = CompletionRequest.model_validate(
        {"prompt": [40, 41], "temperature": 0, "max_tokens": 60, "response_format": wanted}
    )
    handle = engine.submit(translator.complete(body)[0].request)
    run(engine)
    assert set(json.loads(handle.result(timeout=0).text)) == {"a"}
    assert handle.result().finish_reason == "stop"


def test_tokenize_and_back(server):

    told = httpx.post(f"{server.url}/tokenize", json={"prompt": "hello"}).json()
    assert told["count"] == 5 and told["max_model_len"] == 256
    assert httpx.post(f"{server.url}/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "hello"}
    chat = httpx.post(f"{server.url}/tokenize", json={"messages": MESSAGES}).json()
    assert httpx.post(f"{server.url}/detokenize", json={"tokens": chat["tokens"]}).json() == {"prompt": CHAT_TEXT}


def test_metrics_count_what_happened(server, client):

    def read() -> dict[str, float]:
        text = httpx.get(f"{server.url}/metrics").text
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("position", "0") == "0"
        }

    before = read()
    client.completions.create(model=NAME, prompt="abababab", temperature=0, max_tokens=100)
    after = read()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["vllm:generation_tokens_total"] == 100 and grown["vllm:prompt_tokens_total"] == 8
    drafts, drafted = grown["vllm:spec_decode_num_drafts_total"], grown["vllm:spec_decode_num_draft_tokens_total"]
    accepted = grown["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < drafts <= drafted and 0 < accepted <= drafted
    assert 0 < grown["vllm:spec_decode_num_accepted_tokens_per_pos_total"] <= drafts
    assert grown["branchwise:steps_total"] == 100 - accepted
    assert grown["vllm:time_to_first_token_seconds_count"] == 1


def test_health_and_version(server):

    from branchwise import __version__

    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/version").json() == {"version": __version__}


@pytest.mark.parametrize(
    "fields, param, says",
    [
        ({"tools": [{"type": "function"}]}, "tools", "'tools' is not supported"),
        ({"bogus": 1}, "bogus", "'bogus' is not supported"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "'system'"),
        ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages.0.name", "not supported"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
        ({"temperature": True}, "temperature", "valid number"),
        ({"temperature": 1e-9}, "temperature", "1e-09 is neither 0 (greedy) nor at least 1e-05"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 99}, "n", "99 choices in one request, 32 are allowed"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 5000}, "max_tokens", "ask for at most 235"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, None, "are the same; give one"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"stop": ""}, "stop.constrained-str", "at least 1 character"),
        ({"logit_bias": {"word": 1}}, "logit_bias", "maps token ids to numbers, got the key 'word'"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "outside the model's vocabulary"),
        ({"top_logprobs": 2}, None, "top_logprobs need logprobs: true"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs the field json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object'"),
        (
            {"messages": [{"role": "user", "content": "x" * 300}]},
            "messages",
            "has 302 tokens and at most 200 are taken",
        ),
    ],
)
def test_a_wrong_field_is_named(client, fields, param, says):
    body = {"messages": MESSAGES, "max_tokens": 4, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body={"model": NAME, **body}, cast_to=object)
    error = caught.value.body
    assert says in error["message"] and error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize("field", [{"suffix": "x"}, {"best_of": 3}, {"logprobs": 3, "echo": True}, {"prompt": []}])
def test_what_completions_do_not_take(client, field):
    with pytest.raises(openai.BadRequestError):
        client.post("/completions", body={"model": NAME, "prompt": "x", **field}, cast_to=object)


def test_fields_that_ask_for_nothing_pass(client):
    off = {
        "tools": None,
        "tool_choice": "none",
        "store": False,
        "parallel_tool_calls": None,
        "best_of": 1,
        "user": "me",
    }
    answer = client.post(
        "/chat/completions",
        body={"model": NAME, "messages": MESSAGES, "max_tokens": 2, "temperature": 0, **off},
        cast_to=object,
    )
    assert answer["usage"]["completion_tokens"] == 2


def test_another_models_name(client):
    with pytest.raises(openai.NotFoundError, match="there is no model 'other' here; there is 'tiny'"):
        client.completions.create(model="other", prompt="x")
