"""Steps in the stream for those who ask, a budget per request, and nothing of either for anybody else."""

from __future__ import annotations

import openai
import pytest

from branchwise import Speculator
from serve_rig import NAME, model_and_tokenizer, serving

MESSAGES = [{"role": "user", "content": "abababab"}]
NEW = 40


@pytest.fixture(scope="module")
def client():
    with serving() as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as own:
        yield own


def stream(client, own: dict | None, **options) -> list:
    extra = {} if own is None else {"extra_body": {"branchwise": own}}
    options = {"temperature": 0, "max_tokens": NEW, **options}
    return list(client.chat.completions.create(model=NAME, messages=MESSAGES, stream=True, **options, **extra))


def steps_of(chunks, index: int = 0) -> list[dict]:
    told = [(chunk.choices[0].index, chunk.model_extra.get("branchwise")) for chunk in chunks if chunk.choices]
    return [own["step"] for choice, own in told if own is not None and choice == index]


def text_of(chunks, index: int = 0) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == index)


def ids_of(step: dict) -> list[int]:
    """The emitted tokens, from the drawing."""
    return [*(step["nodes"][node]["id"] for node in step["path"][1:]), step["bonus"]["id"]][: step["emitted"]]


def test_steps_tell_what_was_drafted_and_kept(client):
    chunks = stream(client, {"steps": True})
    steps, text = steps_of(chunks), text_of(chunks)
    tokenizer = model_and_tokenizer()[1]
    prompt = len(tokenizer("<|user|>abababab<|assistant|>").input_ids)
    assert sum(step["emitted"] for step in steps) == NEW
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert max(len(step["nodes"]) for step in steps) > 1, "something was drafted"
    emitted = 0
    for step in steps:
        assert step["committed"] == prompt + emitted - 1
        assert step["path"] == [n for n, node in enumerate(step["nodes"]) if node["accepted"]]
        run_text = tokenizer.decode(ids_of(step), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert len(step["pieces"]) == step["emitted"] and "".join(step["pieces"]) == run_text
        assert all(ms >= 0 for ms in step["ms"].values()) and step["ms"]["forward"] > 0
        emitted += step["emitted"]
    assert "".join(piece for step in steps for piece in step["pieces"]) == text
    assert {node["source"] for step in steps for node in step["nodes"][1:]} <= {"ngram", "recycling"}


def test_budget_1_is_plain_decoding_with_the_same_text(client):
    trees, plain = stream(client, {"steps": True}), stream(client, {"steps": True, "budget": 1})
    assert text_of(plain) == text_of(trees)
    assert [len(step["nodes"]) for step in steps_of(plain)] == [1] * NEW
    assert {step["budget"] for step in steps_of(plain)} == {1}
    small = steps_of(stream(client, {"steps": True, "budget": 3}))
    assert max(len(step["nodes"]) for step in small) <= 3


def test_who_does_not_ask_sees_nothing_new(client):
    asked, plainly = stream(client, {"steps": True}), stream(client, None)
    for own in (None, {"steps": False}, {}, {"budget": 4}):
        assert all("branchwise" not in chunk.model_extra for chunk in stream(client, own))
    assert text_of(asked) == text_of(plainly)
    assert {key for chunk in asked for key in chunk.model_dump()} - {"branchwise"} == {
        key for chunk in plainly for key in chunk.model_dump()
    }


def test_each_choice_tells_its_own_steps(client):
    chunks = stream(client, {"steps": True}, n=2, seed=5, temperature=1.0)
    for index in (0, 1):
        pieces = [piece for step in steps_of(chunks, index) for piece in step["pieces"]]
        assert "".join(pieces) == text_of(chunks, index)


def test_a_stop_string_does_not_show_in_pieces(client):
    whole = text_of(stream(client, None))
    stop = whole[20:23]
    chunks = stream(client, {"steps": True}, stop=[stop])
    assert text_of(chunks) == whole[: whole.index(stop)]
    shown = "".join(piece for step in steps_of(chunks) for piece in step["pieces"])
    assert whole.startswith(shown) and stop not in shown


def test_plain_completions_tell_steps_too(client):
    chunks = list(
        client.completions.create(
            model=NAME,
            prompt="abab",
            temperature=0,
            max_tokens=9,
            stream=True,
            extra_body={"branchwise": {"steps": True}},
        )
    )
    steps = steps_of(chunks)
    assert "".join(p for step in steps for p in step["pieces"]) == "".join(chunk.choices[0].text for chunk in chunks)
    model, tokenizer = model_and_tokenizer()
    ids = tokenizer("abab").input_ids
    alone = Speculator(model, tokenizer, drafter="none").complete(ids, max_new_tokens=9, do_sample=False)
    assert [token for step in steps for token in ids_of(step)] == list(alone.tokens)


@pytest.mark.parametrize(
    "own, param, says",
    [
        ({"budget": 0}, "branchwise.budget", "greater than or equal to 1"),
        ({"budget": "5"}, "branchwise.budget", "valid integer"),
        ({"budget": True}, "branchwise.budget", "valid integer"),
        ({"steps": 1}, "branchwise.steps", "valid boolean"),
        ({"drafter": "none"}, "branchwise.drafter", "not supported"),
        ([], "branchwise", "dictionary"),
    ],
)
def test_malformed_options_are_refused_by_name(client, own, param, says):
    with pytest.raises(openai.BadRequestError) as caught:
        stream(client, own)
    assert caught.value.body["param"] == param and says in caught.value.body["message"]


def test_steps_need_a_stream(client):
    with pytest.raises(openai.BadRequestError, match=r"branchwise\.steps need stream: true"):
        client.chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=2, extra_body={"branchwise": {"steps": True}}
        )
    answer = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=2, temperature=0, extra_body={"branchwise": {"budget": 1}}
    )
    assert answer.usage.completion_tokens == 2
