"""Output as it comes: transformers' streamers, and the iterator."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from branchwise import Speculator
from branchwise.decode.text import ShownText
from drafters import Scripted
from loop_rig import RunsOf, WildTrees
from oracles import greedy_by_recompute
from tiny_folder import CHARACTERS, SPECIAL, character_tokenizer
from tiny_tokenizers import byte_tokenizer
from zoo import tiny_llama

pytestmark = pytest.mark.core

PROMPT = [9, 8, 7]
IDS = torch.tensor([PROMPT])
NEW = 20
TOKENIZER = character_tokenizer()
BYTES = byte_tokenizer()


@pytest.fixture(scope="module")
def model():
    return tiny_llama(seed=4, vocab_size=len(SPECIAL) + len(CHARACTERS))


@pytest.fixture(scope="module")
def future(model):
    return greedy_by_recompute(model, PROMPT, NEW)


@pytest.fixture
def speculator(model, future):
    return Speculator(model, TOKENIZER, drafter=WildTrees({tuple(PROMPT): future}, right=0.8), budget=12)


class Recorder(BaseStreamer):
    """Notes every call as it comes."""

    def __init__(self) -> None:
        self.calls: list = []

    def put(self, value):
        self.calls.append((tuple(value.shape), value.tolist(), value.device.type))

    def end(self):
        self.calls.append("end")


# transformers' streamers


def test_a_streamer_gets_the_calls_that_transformers_makes(model, speculator):
    own, ours = Recorder(), Recorder()
    model.generate(IDS, max_new_tokens=NEW, do_sample=False, streamer=own)
    speculator.generate(IDS, max_new_tokens=NEW, do_sample=False, streamer=ours)
    assert ours.calls == own.calls
    assert len(ours.calls) == 1 + NEW + 1


def test_tokens_reach_the_streamer_while_the_text_is_written(model, future):
    """Not all at the end: when the k-th token arrives, the model has run only as far as needed for it."""
    forwards, seen = [], []
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(1))

    class Watcher(Recorder):
        def put(self, value):
            seen.append(len(forwards))

    try:
        Speculator(model, drafter=Scripted({tuple(PROMPT): future}, vocab=len(TOKENIZER)), budget=13).generate(
            IDS, max_new_tokens=NEW, do_sample=False, streamer=Watcher()
        )
    finally:
        handle.remove()
    assert seen[0] == 1, "the prompt, once it is in the cache"
    assert seen[1:] == [2 + token // 5 for token in range(NEW)]


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_text_streamers_print_what_they_print_for_transformers(model, speculator, capsys, skip_prompt):
    options = {"max_new_tokens": NEW, "do_sample": False}
    model.generate(IDS, streamer=TextStreamer(TOKENIZER, skip_prompt=skip_prompt), **options)
    expected = capsys.readouterr().out
    speculator.generate(IDS, streamer=TextStreamer(TOKENIZER, skip_prompt=skip_prompt), **options)
    assert capsys.readouterr().out == expected
    assert len(expected) > NEW


def test_an_iterator_streamer_in_another_thread(model, speculator, future):
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=20, skip_special_tokens=True)
    options = {"max_new_tokens": NEW, "do_sample": False, "streamer": streamer}
    thread = threading.Thread(target=speculator.generate, args=(IDS,), kwargs=options)
    thread.start()
    pieces = list(streamer)
    thread.join()
    assert "".join(pieces) == TOKENIZER.decode(future, skip_special_tokens=True)


# the iterator


def test_runs_of_ids_without_a_tokenizer(model, future):
    speculator = Speculator(model, drafter=Scripted({tuple(PROMPT): future}, vocab=len(TOKENIZER)), budget=13)
    assert list(speculator.stream(IDS, max_new_tokens=12, do_sample=False)) == [
        tuple(future[:5]),
        tuple(future[5:10]),
        tuple(future[10:12]),
    ]


def test_text_with_a_tokenizer(speculator, future):
    pieces = list(speculator.stream(IDS, max_new_tokens=NEW, do_sample=False))
    assert "".join(pieces) == TOKENIZER.decode(future, skip_special_tokens=True)
    assert all(pieces) and len(pieces) > 2


@pytest.mark.parametrize("runs", [[1], [2], [3], [7], [5, 1]], ids=str)
def test_no_piece_ends_in_half_a_character(runs):
    """A model that is made to write a text in bytes, a run of accepted tokens ending anywhere in a character."""
    text = "né 日本語 👍🏽!"
    written = list(text.encode())
    model = writes(written)
    speculator = Speculator(model, BYTES, drafter=RunsOf([300, *written], runs), budget=20)
    pieces = list(speculator.stream(torch.tensor([[300]]), max_new_tokens=len(written), do_sample=False))
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def test_a_text_cut_in_the_middle_of_a_character_ends_as_it_decodes():
    written = list("a日".encode())[:3]
    speculator = Speculator(writes(written), BYTES, drafter="none")
    pieces = list(speculator.stream(torch.tensor([[300]]), max_new_tokens=3, do_sample=False))
    assert pieces == ["a", "�"]
    assert "".join(pieces) == BYTES.decode(written)


def writes(tokens: list[int]):
    """A Llama that writes ``tokens`` after a prompt of one token: one-hot embeddings of positions decide."""
    model = tiny_llama(seed=0, vocab_size=301, max_position_embeddings=64)
    wanted = [*tokens, 0]

    def force(module, args, kwargs, output):
        positions = kwargs["position_ids"]  # [B, N]
        output.logits.zero_()
        for row, line in enumerate(positions.tolist()):
            for node, position in enumerate(line[-output.logits.shape[1] :]):
                output.logits[row, node, wanted[min(position, len(wanted) - 1)]] = 9.0

    model.register_forward_hook(force, with_kwargs=True)
    return model


@pytest.mark.parametrize("pieces_read", [0, 1, 3])
@pytest.mark.parametrize("how", ["close", "forget"])
def test_leaving_the_iterator_early_frees_everything(speculator, pieces_read, how):
    stream = speculator.stream(IDS, max_new_tokens=NEW, do_sample=False)
    for _ in range(pieces_read):
        next(stream)
    assert len(speculator.target.cache.lanes) == 1
    if how == "close":
        stream.close()
    else:
        del stream
        gc.collect()
    assert speculator.target.cache.lanes == ()
    assert speculator.target.cache.nbytes == 0


def test_a_stream_that_is_read_to_the_end_holds_nothing(speculator):
    list(speculator.stream(IDS, max_new_tokens=NEW, do_sample=False))
    assert speculator.target.cache.lanes == ()


@pytest.mark.parametrize("where", ["start", "middle"])
def test_a_stream_may_cross_the_border_of_inference_mode(speculator, future, where):
    """What is made inside torch.inference_mode() cannot be written to outside."""
    options = {"max_new_tokens": NEW, "do_sample": False, "logits_processor": [lambda ids, scores: scores]}
    if where == "start":
        with torch.inference_mode():
            stream = speculator.stream(IDS, **options)
    else:
        stream = speculator.stream(IDS, **options)
        with torch.inference_mode():
            first = next(stream)
        stream = iter([first, *stream])
    assert "".join(stream) == TOKENIZER.decode(future, skip_special_tokens=True)


def test_processors_run_without_gradients(speculator):
    modes = []

    def note(input_ids, scores):
        modes.append((torch.is_grad_enabled(), scores.requires_grad))
        return scores

    with torch.enable_grad():
        speculator.generate(IDS, max_new_tokens=3, do_sample=False, logits_processor=[note])
        assert torch.is_grad_enabled()
    assert set(modes) == {(False, False)}


def test_a_bad_request_raises_at_the_call_and_not_at_the_first_piece(speculator):
    with pytest.raises(ValueError, match="num_beams"):
        speculator.stream(IDS, num_beams=3)
    with pytest.raises(ValueError, match="token 0 is 999"):
        speculator.stream(torch.tensor([[999]]), max_new_tokens=3)
    with pytest.raises(ValueError, match="seed"):
        speculator.stream(IDS, max_new_tokens=3, seed=-1)
    assert speculator.target.cache.lanes == ()


def test_the_stream_ends_before_the_stop_string_like_the_text(speculator, model, future):
    """The ids hold the token that completes it, as in transformers; the text does not show it."""
    stop = TOKENIZER.decode(next(token for token in future[6:] if token >= len(SPECIAL)))
    options = {"max_new_tokens": NEW, "do_sample": False, "stop_strings": [stop]}
    ids = model.generate(IDS, tokenizer=TOKENIZER, **options)
    whole = TOKENIZER.decode(ids[0, len(PROMPT) :], skip_special_tokens=True)
    assert whole.endswith(stop)
    pieces = list(speculator.stream(IDS, **options))
    assert "".join(pieces) == whole.partition(stop)[0] == speculator.complete(PROMPT, **options).text


def test_the_start_of_a_stop_string_is_held_back_until_it_is_another_word():
    shown = ShownText(TOKENIZER, ["lo!", "loud"])
    given = [
        shown.push(TOKENIZER(word, add_special_tokens=False).input_ids) for word in ("hel", "lo", " wor", "loud x")
    ]
    assert "".join(given) + shown.flush() == "hello wor"
    assert given[0] != "hel"  # may still become "lo!"
