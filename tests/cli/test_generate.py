"""The command line, run in-process on a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from branchwise.cli import app
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core
NEW = 24


@pytest.fixture(scope="module")
def raw_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that would sample, if it were asked."""
    defaults = {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.8, "repetition_penalty": 1.5}
    return save_tiny_model(tmp_path_factory.mktemp("chat"), chat=True, **defaults)


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def generate(model: Path, *arguments: object, stdin: str | bytes | None = None) -> Result:
    return run(
        "generate",
        *arguments,
        "--model",
        model,
        "--dtype",
        "float64",
        "--max-new-tokens",
        NEW,
        "--threads",
        1,
        stdin=stdin,
    )


def as_json(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1, "stdout holds one line: the object"
    return json.loads(result.stdout)


def one_line_error(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("branchwise: ") and result.stderr.count("\n") == 1
    return result.stderr


def test_json_holds_what_it_promises(raw_model: Path) -> None:
    record = as_json(generate(raw_model, "hello there", "--json", "--budget", 5, "--drafter", "mixed"))
    assert record["prompt_tokens"] == len("hello there")
    assert record["new_tokens"] == len(record["token_ids"]) == NEW
    assert 1 <= record["steps"] <= NEW
    assert record["tokens_per_step"] == pytest.approx(NEW / record["steps"], abs=1e-3)
    assert record["seconds"] > 0 and record["prefill_seconds"] > 0
    assert record["tokens_per_second"] == pytest.approx(NEW / record["seconds"], rel=1e-2)
    assert (record["finish_reason"], record["stop_cause"]) == ("length", "max_new_tokens")
    assert (record["drafter"], record["budget"], record["rule"], record["seed"]) == ("mixed", 5, "auto", None)
    assert record["model"] == raw_model.name, "a path of this machine is nobody's business"


@pytest.mark.parametrize("more", [(), ("--no-stream",)])
def test_text_is_the_same_streamed_whole_and_in_json(raw_model: Path, more: tuple[str, ...]) -> None:
    text = as_json(generate(raw_model, "hello", "--json"))["text"]
    result = generate(raw_model, "hello", *more)
    assert result.exit_code == 0
    assert result.stdout == text + "\n"
    assert "tokens per step" in result.stderr


def test_compare_agrees_in_float64(raw_model: Path) -> None:
    record = as_json(generate(raw_model, "hello", "--json", "--compare", "--budget", 9))
    assert record["compare"]["tokens_agree"] is True
    assert record["compare"]["first_difference"] is None
    assert record["compare"]["speed_up"] > 0
    result = generate(raw_model, "hello", "--compare")
    assert "all tokens agree" in result.stderr and "x plain decoding" in result.stderr


def test_compare_agrees_when_sampling_without_a_seed(raw_model: Path) -> None:
    record = as_json(generate(raw_model, "hello", "--json", "--compare", "--budget", 9, "--temperature", 0.8))
    assert record["compare"]["tokens_agree"] is True
    assert isinstance(record["seed"], int), "the seed that was drawn is told, so that the run can be repeated"


def test_the_checkpoint_s_sampling_defaults_are_off(chat_model: Path) -> None:
    """The checkpoint samples by default; two greedy runs agree, and with the penalty asked for the text changes."""
    texts = [as_json(generate(chat_model, "abc", "--raw", "--json"))["text"] for _ in range(2)]
    assert texts[0] == texts[1]
    penalised = as_json(generate(chat_model, "abc", "--raw", "--json", "--repetition-penalty", 1.5))["text"]
    assert penalised != texts[0]


def test_greedy_equals_transformers(chat_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(chat_model, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    ids = tokenizer("abc", return_tensors="pt").input_ids
    settings = {"do_sample": False, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    expected = model.generate(ids, max_new_tokens=NEW, **settings)[0, 3:].tolist()
    assert as_json(generate(chat_model, "abc", "--raw", "--json"))["token_ids"] == expected


def test_a_seed_repeats_a_sample(raw_model: Path) -> None:
    options = ("abc", "--json", "--temperature", 1.0, "--top-k", 20, "--top-p", 0.95, "--min-p", 0.01)
    one, same, other = (as_json(generate(raw_model, *options, "--seed", seed))["token_ids"] for seed in (7, 7, 8))
    assert one == same != other


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stop_string_ends_text_and_stream(raw_model: Path, length: int) -> None:
    whole = as_json(generate(raw_model, "hello", "--json"))["text"]
    start = next(at for at in range(4, len(whole)) if whole.find(whole[at : at + length]) == at)
    stop = whole[start : start + length]
    record = as_json(generate(raw_model, "hello", "--json", "--stop", stop, "--stop", "never this"))
    assert record["text"] == whole[:start]
    assert (record["finish_reason"], record["stop_cause"]) == ("stop", "stop_string")
    assert generate(raw_model, "hello", "--stop", stop).stdout == whole[:start] + "\n"


def test_prompt_from_stdin_and_from_a_file(raw_model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("hello there\n", encoding="utf-8")
    expected = as_json(generate(raw_model, "hello there", "--json"))["token_ids"]
    assert as_json(generate(raw_model, "--json", stdin="hello there\n"))["token_ids"] == expected
    assert as_json(generate(raw_model, "-", "--json", stdin="hello there"))["token_ids"] == expected
    assert as_json(generate(raw_model, "--json", "--file", tmp_path / "prompt.txt"))["token_ids"] == expected


def test_chat_is_the_default_where_there_is_a_template(chat_model: Path) -> None:
    default = as_json(generate(chat_model, "abc", "--json"))
    assert default["prompt_tokens"] == len("abc") + 2, "user and assistant marks"
    assert as_json(generate(chat_model, "abc", "--json", "--chat"))["token_ids"] == default["token_ids"]
    assert as_json(generate(chat_model, "abc", "--json", "--raw"))["prompt_tokens"] == 3
    assert as_json(generate(chat_model, "abc", "--json", "--system", "be good"))["prompt_tokens"] == 3 + 2 + 8


def test_show_tree_draws_every_step_beside_the_text(raw_model: Path) -> None:
    plain = generate(raw_model, "hello")
    result = generate(raw_model, "hello", "--show-tree", "--budget", 5)
    assert result.stdout == plain.stdout
    steps = as_json(generate(raw_model, "hello", "--json", "--budget", 5))["steps"]
    drawings = [line for line in result.stderr.splitlines() if line.startswith("step ")]
    assert len(drawings) == steps
    assert drawings[0].startswith("step 1: ")
    assert result.stderr.count("bonus") == steps


def test_the_models_own_first_layers_draft(raw_model: Path) -> None:
    plain = as_json(generate(raw_model, "hello", "--json", "--drafter", "none"))
    options = ("--json", "--drafter", "early_exit", "--budget", 9)
    for more in ((), ("--exit-layer", 1), ("--exit-layer", 1, "--compare")):
        found = as_json(generate(raw_model, "hello", *options, *more))
        assert found["text"] == plain["text"]
        assert found["drafter"] == "early_exit"
        assert found["steps"] < plain["steps"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "the prompt is empty"),
        (("x", "--budget", "0"), "must be >= 1"),
        (("x", "--budget", "-3"), "must be >= 1"),
        (("x", "--budget", "many"), "whole number of nodes or 'auto', got 'many'"),
        (("x", "--drafter", "psychic"), "no drafter is named 'psychic'; there are none, ngram, recycling, "),
        (("x", "--exit-layer", "1"), "--exit-layer goes with --drafter early_exit"),
        (
            ("x", "--drafter", "early_exit", "--exit-layer", "9"),
            "exit_layer must be from 1 to 1 for a model of 2 layers",
        ),
        (("x", "--rule", "psychic"), "no rule is called 'psychic'; there are: auto, greedy, match"),
        (("x", "--chat"), "--chat needs a chat template and this model's tokenizer has none; use --raw"),
        (("x", "--system", "be good"), "--system needs a chat template"),
        (("x", "--raw", "--system", "be good"), "with --raw put it into the prompt itself"),
        (("x", "--top-k", "5"), "top-k has no effect on greedy decoding"),
        (("x", "--top-p", "0.5"), "top-p has no effect on greedy decoding"),
        (("x", "--min-p", "0.5"), "min-p has no effect on greedy decoding"),
        (("x", "--temperature", "-1"), "temperature must be >= 0"),
        (("x", "--temperature", "1", "--top-k", "0"), "top-k must be >= 1"),
        (("x", "--temperature", "1", "--top-p", "1.5"), "top-p must lie in (0, 1]"),
        (("x", "--temperature", "1", "--rule", "greedy"), "rule 'greedy' does not fit do_sample=True"),
        (("x", "--repetition-penalty", "0"), "repetition-penalty must be > 0"),
        (("x", "--stop", ""), "a stop string must not be empty"),
        (("x", "--dtype", "float7"), "no dtype is named 'float7'; there are auto, float32"),
        (("x", "--device", "nowhere"), "device 'nowhere' cannot be used here"),
        (("x", "--file", "y"), "either as an argument or with --file, not both"),
        (("x" * 300,), "the prompt has 300 tokens but the model's context ends at 256"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(raw_model: Path, arguments: tuple[str, ...], says: str) -> None:
    options = list(arguments)
    if "--dtype" not in options:
        options += ["--dtype", "float64"]
    assert says in one_line_error(run("generate", *options, "--model", raw_model))


def test_no_prompt_at_all(raw_model: Path) -> None:
    assert "the prompt is empty" in one_line_error(generate(raw_model, stdin=""))


def test_missing_files_are_named(raw_model: Path, tmp_path: Path) -> None:
    assert "absent.txt" in one_line_error(generate(raw_model, "--file", tmp_path / "absent.txt"))
    assert "no folder" in one_line_error(run("generate", "x", "--model", tmp_path / "no-model"))


def test_a_foreign_encoding_is_no_traceback(raw_model: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "latin.txt is not UTF-8 text" in one_line_error(generate(raw_model, "--file", tmp_path / "latin.txt"))


def test_new_tokens_below_one(raw_model: Path) -> None:
    assert "max-new-tokens must be >= 1, got 0" in one_line_error(
        run("generate", "x", "--model", raw_model, "--max-new-tokens", 0)
    )


def test_debug_lets_the_error_through(raw_model: Path) -> None:
    result = run("generate", "x", "--model", raw_model, "--budget", 0, "--debug")
    assert isinstance(result.exception, ValueError)


def test_interruption_exits_130(raw_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from branchwise.decode.session import Session

    steps = []

    def interrupted(self: Session) -> list:
        steps.append(self)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return step(self)

    step = Session.step
    monkeypatch.setattr(Session, "step", interrupted)
    result = generate(raw_model, "hello")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr and "Traceback" not in result.output
    assert steps[0].active == [], "lanes are freed"


def test_version_and_help() -> None:
    from branchwise import __version__

    assert run("version").stdout == f"{__version__}\n"
    helped = run("--help")
    assert helped.exit_code == 0
    for command in ("generate", "models", "bench", "version"):
        assert command in helped.stdout


def test_help_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, branchwise.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_stdin_that_is_no_text_is_refused(raw_model: Path) -> None:
    assert "stdin is not UTF-8 text (byte 2)" in one_line_error(generate(raw_model, "-", stdin=b"ab\xff\xfe"))
