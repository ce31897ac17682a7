"""The target writes data: lanes come and go, kills lose only what is in flight, settings may not change midway."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_rig import QUICK, Listener, answer_sequence, tiny_chat, tiny_desk
from transformers import AutoModelForCausalLM, AutoTokenizer

from branchwise.train.commands import DataOrder, write_data
from branchwise.train.disk import DiskFull
from branchwise.train.identity import Identity, TargetMismatch
from branchwise.train.library import SAME_TOKENS, Library
from branchwise.train.plans import Planner, WritingSettings, read_prompts_file
from branchwise.train.shards import ANSWER, CONTEXT, USER, TokenSequence, read_all, shard_numbers
from branchwise.train.texts import write_texts
from branchwise.train.writing import Tally, only_writer, write_dialogues
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core

PROMPTS = ("how many?", "say it twice.", "what is ABC?", "count to 9.", "hello!", "abc\ndef", "one two three.")


def content(folder: Path) -> list[tuple[int, list[int], list[int]]]:
    return [(s.number, s.tokens.tolist(), s.roles.tolist()) for s in read_all(folder)]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


def answer(folder: Path, model_folder: Path, *, listener: Listener | None = None, **desk: object) -> Tally:
    return write_dialogues(
        folder,
        tiny_desk(model_folder, **desk),
        QUICK,
        answer_tokens=10**6,
        prompts=PROMPTS,
        progress=listener or Listener(),
    )


def test_answers_are_the_targets_own_with_the_template_around_them(tmp_path: Path, model_folder: Path) -> None:
    settings = replace(QUICK, greedy_share=1.0)
    desk = tiny_desk(model_folder)
    write_dialogues(tmp_path, desk, settings, answer_tokens=10**6, prompts=PROMPTS, progress=Listener())
    model = desk.target.model
    for sequence in read_all(tmp_path):
        tokens, roles = sequence.tokens.tolist(), sequence.roles.tolist()
        start = roles.index(ANSWER)
        assert roles == [CONTEXT] + [USER] * (start - 2) + [CONTEXT] + [ANSWER] * (len(roles) - start)
        assert desk.tokenizer.decode(tokens[:start]) == f"<|user|>{PROMPTS[sequence.number]}<|assistant|>"
        for place in range(start, len(tokens)):  # the oracle: one forward per token, without a cache
            logits = model(torch.tensor([tokens[:place]])).logits[0, -1]
            assert tokens[place] == int(logits.float().argmax())


def test_the_data_do_not_depend_on_lanes_or_drafter(tmp_path: Path, model_folder: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    answer(one, model_folder, lanes=1)
    answer(three, model_folder, lanes=3, drafter="mixed", budget=6)
    assert content(one) == content(three)


def test_the_target_asks_itself(tmp_path: Path, model_folder: Path) -> None:
    tally = write_dialogues(tmp_path, tiny_desk(model_folder), QUICK, answer_tokens=60, progress=Listener())
    assert tally.answer_tokens >= 60
    sequences = list(read_all(tmp_path))
    assert len({s.kind for s in sequences}) >= 3
    for s in sequences:
        assert 0 < s.answer_tokens <= QUICK.answer_tokens and (s.roles == USER).any()
        assert s.tokens[np.flatnonzero(s.roles == ANSWER)[0] - 1] == 5  # <|assistant|> stands before the answer


def test_a_kill_loses_only_what_was_in_flight(tmp_path: Path, model_folder: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    answer(whole, model_folder)
    with pytest.raises(KeyboardInterrupt):
        answer(killed, model_folder, listener=Listener(interrupt_after=24))
    assert shard_numbers(killed) == [0]
    before = (killed / "shard-00000.safetensors").stat()
    answer(killed, model_folder)
    after = (killed / "shard-00000.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert content(killed) == content(whole)


def test_more_may_be_asked_for_later(tmp_path: Path, model_folder: Path) -> None:
    desk = tiny_desk(model_folder)
    few = write_dialogues(tmp_path, desk, QUICK, answer_tokens=20, progress=Listener())
    again = write_dialogues(tmp_path, desk, QUICK, answer_tokens=20, progress=Listener())
    assert again.dialogues == few.dialogues
    more = write_dialogues(tmp_path, desk, QUICK, answer_tokens=few.answer_tokens + 20, progress=Listener())
    assert more.answer_tokens >= few.answer_tokens + 20


def test_other_settings_and_other_targets_are_refused(tmp_path: Path, model_folder: Path) -> None:
    desk = tiny_desk(model_folder)
    write_dialogues(tmp_path, desk, QUICK, answer_tokens=5, progress=Listener())
    with pytest.raises(ValueError, match="begun with seed 0, now it is 1"):
        write_dialogues(tmp_path, desk, replace(QUICK, seed=1), answer_tokens=50, progress=Listener())
    foreign = replace(desk, identity=replace(desk.identity, hidden_size=64))
    with pytest.raises(TargetMismatch, match="hidden size is 32, this one's is 64"):
        write_dialogues(tmp_path, foreign, QUICK, answer_tokens=50, progress=Listener())


def test_a_full_disk_in_the_middle(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.numpy import save_file

    def first_only(tensors, path, metadata):
        if shard_numbers(tmp_path):
            raise OSError(28, "No space left on device")
        save_file(tensors, path, metadata=metadata)

    with monkeypatch.context() as patched, pytest.raises(DiskFull, match="Make room"):
        patched.setattr("safetensors.numpy.save_file", first_only)
        answer(tmp_path, model_folder)
    assert shard_numbers(tmp_path) == [0]
    answer(tmp_path, model_folder)
    assert shard_numbers(tmp_path) == [0, 1]


def test_two_writers_do_not_share_a_folder(tmp_path: Path) -> None:
    with only_writer(tmp_path), pytest.raises(ValueError, match="another process is writing"), only_writer(tmp_path):
        pass


def test_writing_leaves_the_model_as_it_was(tmp_path: Path, model_folder: Path) -> None:
    desk = tiny_desk(model_folder)
    model = desk.target.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    write_dialogues(tmp_path, desk, QUICK, answer_tokens=5, progress=Listener())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not desk.target.cache.lanes


def test_repeated_and_empty_answers_are_dropped() -> None:
    library = Library(None, frozenset())
    long = list(range(SAME_TOKENS + 5))
    assert library.take(answer_sequence(0, [1, *long]))
    assert not library.take(answer_sequence(1, [2, *long[:-1], 99]))  # the same beginning
    short = [1, 2, 3]
    with_question = [
        TokenSequence(n, "", np.array([q, *short], np.int32), np.array([USER, *[ANSWER] * 3], np.uint8))
        for n, q in enumerate((7, 8, 7))
    ]
    assert [library.take(s) for s in with_question] == [True, True, False]
    assert not library.take(answer_sequence(2, [1, 2], 1))  # one token is no answer


def test_finished_answers_become_passages(model_folder: Path) -> None:
    _, tokenizer = tiny_chat(model_folder)
    library = Library(tokenizer, frozenset({2}))
    text = tokenizer("a long enough answer, " * 3).input_ids
    library.take(answer_sequence(0, [1, *text, 2]))
    library.take(answer_sequence(1, [1, *text[1:]]))  # was cut off
    import random

    assert library.passages(random.Random(0), 3) == [("a long enough answer, " * 3).strip()]


def test_plans_that_do_not_fit_are_left_out(model_folder: Path) -> None:
    desk = tiny_desk(model_folder)
    planner = Planner(desk.tokenizer, desk.frame, QUICK, prompts=("a" * 108, "a" * 109))
    assert planner.plan(0) is not None and planner.plan(1) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"greedy_share": 1.5}, "greedy-share"),
        ({"temperature": 0.0}, "temperature"),
        ({"answer_tokens": 0}, "answer-tokens"),
        ({"longest": 100}, "longest"),
    ],
)
def test_settings_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WritingSettings(**options)


def test_prompt_files(tmp_path: Path) -> None:
    plain, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("first\n\nsecond\n")
    rows.write_text('{"prompt": "first"}\n{"turns": ["second", "more"]}\n')
    assert read_prompts_file(plain) == read_prompts_file(rows) == ["first", "second"]
    rows.write_text('{"prompt": "first"}\n{"text": "second"}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl line 2"):
        read_prompts_file(rows)


def test_texts_as_they_are(tmp_path: Path, model_folder: Path) -> None:
    model, tokenizer = tiny_chat(model_folder)
    file = tmp_path / "book.txt"
    file.write_text("abcdefgh. " * 5)
    out = tmp_path / "out"
    options = {"longest": 16, "sequences_per_shard": 2, "progress": Listener()}
    tally = write_texts(out, tokenizer, Identity.of(model, tokenizer), [file], **options)
    sequences = list(read_all(out))
    assert tokenizer.decode([t for s in sequences for t in s.tokens.tolist()]) == file.read_text()
    assert max(map(len, sequences)) == 16 and tally.dialogues == len(sequences) == 4
    assert all((s.roles == USER).all() for s in sequences)
    (tmp_path / "bad.txt").write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        write_texts(tmp_path / "x", tokenizer, Identity.of(model, tokenizer), [tmp_path / "bad.txt"], **options)


def test_a_base_model_continues_openers(tmp_path: Path) -> None:
    place = save_tiny_model(tmp_path / "base")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
    line = write_data(DataOrder(tmp_path / "out", QUICK, 20, lanes=2), model, tokenizer)
    sequences = list(read_all(tmp_path / "out"))
    assert sequences and all(set(s.roles.tolist()) <= {USER, ANSWER} for s in sequences)
    assert line.startswith(f"out: {len(sequences)} sequences, ")


def test_the_disk_cost_comes_first(tmp_path: Path, model_folder: Path) -> None:
    listener, many = Listener(), 3 * 10**12
    with pytest.raises(DiskFull, match=r"data still to write needs 30000\.0 GB .* make room, or ask for less"):
        write_dialogues(tmp_path, tiny_desk(model_folder), QUICK, answer_tokens=many, progress=listener)
    answer(tmp_path, model_folder, listener=listener)
    # seven prompts of at most ten tokens each, as many around them, five bytes each
    assert listener.lines[0].startswith("data still to write: 1 kB on disk, ")
