"""A batch: its answers are those of every row alone, in place, and it goes on after a kill as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from batch_rig import WAVE_ROWS, answering, records, rows, run, texts, work_on, write_rows
from branchwise.batch.job import run_job
from branchwise.batch.output import OutputFile
from branchwise.batch.record import record_path
from branchwise.batch.row import RowDefaults, row_seed
from branchwise.batch.worker import Work, Worker
from branchwise.decode.request import Request
from branchwise.decode.stopping import StopRules
from branchwise.target import HuggingFaceTarget
from branchwise.verify.law import Sampler
from tiny_folder import save_tiny_model

COUNT = 21
#: a child that does not end within this has failed
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), chat=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.jsonl", rows(COUNT))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The answers of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    out = folder / "out.jsonl"
    tally = run(work_on(write_rows(folder / "in.jsonl", rows(COUNT)), model), out)
    assert (tally.rows, tally.done, tally.fresh) == (COUNT, COUNT, COUNT)
    told = records(out)
    assert tally.failed == sum(record["response"]["status_code"] != 200 for record in told)
    return told


def test_every_row_is_answered_in_its_place(whole: list[dict]) -> None:
    made = rows(COUNT)
    ids = [row.get("custom_id") if isinstance(row, dict) else None for row in made]
    assert [record["custom_id"] for record in whole] == [own or f"row-{n}" for n, own in enumerate(ids)]
    assert len({record["id"] for record in whole}) == COUNT
    kinds = [(n % 8, record["response"]["status_code"]) for n, record in enumerate(whole)]
    assert {status for kind, status in kinds if kind < 5} == {200}
    assert {status for kind, status in kinds if kind >= 5} == {400, 413}
    assert all(record["error"] is None for record in whole)
    unknown = whole[5]["response"]["body"]["error"]
    assert (unknown["param"], unknown["code"]) == ("maximum", "unknown_field")
    assert len(whole[2]["response"]["body"]["choices"]) == len(whole[3]["response"]["body"]["choices"]) == 2
    assert texts(whole[4])[0].startswith(made[4]["prompt"]), "echo"


def test_no_row_depends_on_the_others(model: Path, source: Path, tmp_path: Path, whole: list[dict]) -> None:
    """In float64: plain decoding, one row at a time, writes the same bytes as many rows with trees at once."""
    run(work_on(source, model, 1, drafter="none", budget=1, max_lanes=1), tmp_path / "alone.jsonl", 1)
    assert [without_logprobs(record) for record in records(tmp_path / "alone.jsonl")] == [
        without_logprobs(record) for record in whole
    ]


def without_logprobs(record: dict) -> dict:
    """Of floats the last digits depend on the shape of a forward."""
    for choice in record["response"]["body"].get("choices", ()):
        choice = dict(choice)
        choice.pop("logprobs")
    return json.loads(json.dumps(record, default=str), parse_float=lambda text: round(float(text), 9))


def test_a_row_without_a_seed_has_one_of_its_own(model: Path, source: Path, whole: list[dict]) -> None:
    """An independent engine with the seed that the row's place gives."""
    worker = Worker.load(work_on(source, model))
    row = rows(COUNT)[9]
    prompt = worker.tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=False)
    ids = tuple(worker.tokenizer(prompt, add_special_tokens=False).input_ids)
    stop = StopRules(row["max_tokens"], stop_tokens=frozenset({worker.tokenizer.eos_token_id}))
    with worker.work.recipe.engine(worker.target, worker.tokenizer, {}, drafter="none", budget=1) as engine:
        handle = engine.submit(Request(ids, Sampler(True), stop, row_seed(0, 9)))
        while engine.step():
            pass
        assert [handle.result().text] == texts(whole[9])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_killed_anywhere_and_restarted_it_writes_the_same_bytes(
    dtype: str, model: Path, source: Path, tmp_path: Path
) -> None:
    work = work_on(source, model, dtype=dtype)
    run(work, tmp_path / "whole.jsonl")
    expected = (tmp_path / "whole.jsonl").read_bytes()
    chance = random.Random(11)
    out = tmp_path / "out.jsonl"
    kills = 0
    while kills < 6:
        here = out.read_bytes().count(b"\n") if out.exists() else 0
        # a row that is still to come, and how much of its line is written when the end comes; 0 is none of it
        row, share = here + chance.randrange(0, 5), chance.choice([0.0, 0.5, 1.0])
        if row >= COUNT:
            break
        assert in_a_child(lambda row=row, share=share: run_and_die(work, out, row, share)) == -signal.SIGKILL
        written = out.read_bytes() if out.exists() else b""
        assert expected.startswith(written) and written.count(b"\n") == row + (share == 1.0)
        kills += 1
    assert kills >= 3
    tally = run(work, out)
    assert out.read_bytes() == expected
    assert tally.done == COUNT and tally.fresh < COUNT
    again = run(work, out)
    assert again.fresh == 0 and again.failed == tally.failed and out.read_bytes() == expected


def run_and_die(work: Work, out: Path, row: int, share: float) -> None:
    """Runs until the line of ``row``, of which a share reaches the disk."""
    append = OutputFile.append

    def dying(self: OutputFile, line: bytes) -> None:
        here = out.read_bytes().count(b"\n") if out.exists() else 0
        if here == row:
            append(self, line[: round(share * len(line))])
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, line)

    OutputFile.append = dying
    run(work, out)


def in_a_child(action) -> int:
    """Runs something in a copy of this process; returns how it ended."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(99)
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child did not end in time")


def test_a_kill_from_outside_at_any_moment(model: Path, source: Path, tmp_path: Path) -> None:
    work = work_on(source, model, 2)
    run(work, tmp_path / "whole.jsonl", 2)
    out = tmp_path / "out.jsonl"
    chance = random.Random(3)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            try:
                run(work, out, 2)
            finally:
                os._exit(0)
        rows_before = out.read_bytes().count(b"\n") if out.exists() else 0
        wanted, end = rows_before + chance.randint(1, 5), time.monotonic() + PATIENCE_SECONDS
        while not os.waitpid(child, os.WNOHANG)[0]:
            if (out.exists() and out.read_bytes().count(b"\n") >= wanted) or time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
        assert time.monotonic() < end
    run(work, out, 2)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_an_output_cut_at_any_byte_is_made_whole(tmp_path: Path) -> None:
    ids = ["a", "\u00fc", "row-2"]
    lines = [json.dumps({"custom_id": own, "response": {"status_code": 200}}).encode() + b"\n" for own in ids]
    content = b"".join(lines)
    for cut in range(len(content) + 1):
        path = tmp_path / "out.jsonl"
        path.write_bytes(content[:cut])
        whole_lines = content[:cut].count(b"\n")
        assert OutputFile(path).recover(ids) == (whole_lines, 0)
        assert path.read_bytes() == b"".join(lines[:whole_lines])


@pytest.mark.parametrize("change", ["swap", "other", "more"])
def test_an_output_that_somebody_changed_is_refused(change: str, model: Path, source: Path, tmp_path: Path) -> None:
    work = work_on(source, model)
    out = tmp_path / "out.jsonl"
    run(work, out)
    lines = out.read_bytes().splitlines(keepends=True)
    if change == "swap":
        lines[0], lines[2] = lines[2], lines[0]
    elif change == "other":
        lines[3] = b"what is this\n"
    else:
        lines.append(lines[-1])
    out.write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match="is not the answer of row"):
        run(work, out)
    assert out.read_bytes() == b"".join(lines), "nothing was touched"


def test_another_input_or_other_settings_are_refused(model: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(work_on(source, model), out)
    before = out.read_bytes()
    with pytest.raises(ValueError, match=r"was begun with temperature=None, now it is 0.5"):
        run(work_on(source, model, defaults=RowDefaults(temperature=0.5)), out)
    with pytest.raises(ValueError, match=r"was begun with wave_rows=6, now it is 7"):
        run(work_on(source, model, 7), out, 7)
    with pytest.raises(ValueError, match=r"was begun with drafter='mixed', now it is 'none'"):
        run(work_on(source, model, drafter="none"), out)
    other = save_tiny_model(tmp_path / "other", chat=True, do_sample=True)
    with pytest.raises(ValueError, match=r"was begun with model="):
        run(work_on(source, other), out)
    with source.open("a") as stream:
        stream.write('{"prompt": "one more"}\n')
    with pytest.raises(ValueError, match="the input is not the one that"):
        run(work_on(source, model), out)
    assert out.read_bytes() == before


def test_a_file_of_somebody_else_is_not_touched(model: Path, source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    with pytest.raises(ValueError, match="is there already and was not begun by this command"):
        run(work_on(source, model), mine)
    with pytest.raises(ValueError, match="is the input"):
        run(work_on(source, model), source)
    assert mine.read_text() == "precious" and not record_path(mine).exists()


def test_two_runs_do_not_write_one_file(model: Path, source: Path, tmp_path: Path) -> None:
    work = work_on(source, model)

    def nested(waves):
        with pytest.raises(ValueError, match="another run is writing"):
            run(work, tmp_path / "out.jsonl")
        return answering(work)(waves)

    assert run_job(work, tmp_path / "out.jsonl", WAVE_ROWS, nested).done == COUNT


def test_a_failing_generation_is_that_rows_error(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[dict]
) -> None:
    """A prompt for which the model computes NaN: its own row fails, the others are what they were."""
    forward = HuggingFaceTarget.feed
    bad = len(rows(COUNT)[0]["prompt"])

    def failing(self: HuggingFaceTarget, lane: int, tokens, feature_layers=()):
        if len(tokens) == bad - 1:
            raise RuntimeError("no luck")
        return forward(self, lane, tokens, feature_layers)

    monkeypatch.setattr(HuggingFaceTarget, "feed", failing)
    run(work_on(source, model, prefix_bytes=0), tmp_path / "out.jsonl")
    told = records(tmp_path / "out.jsonl")
    assert told[0]["response"]["status_code"] == 500
    assert "no luck" in told[0]["response"]["body"]["error"]["message"]
    assert texts(told[1]) == texts(whole[1])
