"""`branchwise import-tree`, and what it writes in use; a suffix store on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from branchwise.cli import app
from branchwise.draft import SuffixStore
from branchwise.tree import StaticShape
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("raw"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def generate(model: Path, *arguments: object) -> Result:
    options = ("--model", model, "--dtype", "float64", "--max-new-tokens", 24, "--threads", 1, "--json")
    return run("generate", "hello there", *options, *arguments)


def one_line_error(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("branchwise: ") and result.stderr.count("\n") == 1
    return result.stderr


def test_prints_the_shape_and_writes_what_the_static_drafter_takes(model: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "choices.py", tmp_path / "tree.json"
    file.write_text("small = [[0]]\nmine = [[0], [1], [0, 0], [0, 3]]\n")
    result = run("import-tree", file, "--name", "mine", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout == "5 nodes, root included; depth 2, 3 leaves\nnodes per level: 1 2 2; ranks used: 4\n"
    assert StaticShape.load(out) == StaticShape([(0,), (1,), (0, 0), (0, 3)])
    plain = json.loads(generate(model, "--drafter", "none").stdout)
    static = json.loads(generate(model, "--drafter", "static", "--tree", out, "--budget", 5).stdout)
    assert static["token_ids"] == plain["token_ids"]
    compared = json.loads(generate(model, "--drafter", "static", "--tree", out, "--compare").stdout)
    assert compared["token_ids"] == plain["token_ids"]


def test_a_pickle_and_a_gap_need_their_options(tmp_path: Path) -> None:
    file = tmp_path / "growmap.pt"
    file.write_bytes(b"")
    assert "--allow-pickle" in one_line_error(run("import-tree", file))
    file = tmp_path / "gap.json"
    file.write_text("[[1, 1]]")
    assert "(1,) is missing from the list; add it, or have it added with --complete" in one_line_error(
        run("import-tree", file)
    )
    assert run("import-tree", file, "--complete").stdout.startswith("3 nodes")


def test_a_suffix_store_is_made_used_and_written_again(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.store"
    plain = json.loads(generate(model, "--drafter", "none").stdout)
    runs = []
    for _ in range(2):
        result = generate(model, "--drafter", "suffix", "--suffix-store", path, "--budget", 9)
        assert result.exit_code == 0, result.output
        runs.append(json.loads(result.stdout))
        store = SuffixStore.load(path)
        store.check_integrity()
    assert [record["token_ids"] for record in runs] == [plain["token_ids"]] * 2
    assert runs[1]["steps"] < runs[0]["steps"]
    assert list(store.text.passages()) and len(list(store.text.passages())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tree", "tree.json"), "--tree goes with --drafter static, not with auto"),
        (("--suffix-store", "s", "--drafter", "static"), "--suffix-store goes with --drafter suffix, not with static"),
        (("--suffix-store", "nowhere/s", "--drafter", "suffix"), "there is no folder 'nowhere'"),
        (("--suffix-store", "s", "--drafter", "suffix", "--compare"), "leave --suffix-store out"),
        (("--tree", "none.json", "--drafter", "static"), "none.json"),
    ],
)
def test_what_does_not_fit_is_said_before_the_model_is_loaded(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in one_line_error(generate(Path("no model"), *options))


def test_a_damaged_store_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "texts.store"
    path.write_bytes(b"damaged")
    message = one_line_error(generate(Path("no model"), "--drafter", "suffix", "--suffix-store", path))
    assert "cannot be used as a suffix store" in message
    assert path.read_bytes() == b"damaged"
