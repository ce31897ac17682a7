"""Weights spread over two processes: the output of one process, also where the second one computes nonsense."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from branchwise import Engine, Speculator
from branchwise.cli import app
from branchwise.hub import load
from branchwise.target import HuggingFaceTarget, ShardedTarget, UnsupportedModel, follow, load_sharded
from parallel_rig import engine_outputs, save_family, speculator_outputs

pytestmark = pytest.mark.core

FAMILIES = ("llama", "qwen2", "phi3", "gemma2")
#: a busy machine may take its time to import torch twice
PATIENCE_SECONDS = 300

# accelerate comes with an extra only
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="transformers loads with a plan only where accelerate is installed"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("families")
    return [save_family(name, parent) for name in FAMILIES]


def torchrun(*arguments: object) -> subprocess.CompletedProcess:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@needs_accelerate
def test_two_processes_give_the_output_of_one(folders: list[Path]) -> None:
    ran = torchrun(Path(__file__).with_name("two_ranks.py"), *folders)
    assert ran.returncode == 0, ran.stderr[-4000:]
    line = next(line for line in ran.stdout.splitlines() if line.startswith("RESULT "))
    told = json.loads(line.removeprefix("RESULT "))
    for number, folder in enumerate(folders):
        model, _ = load(folder, dtype=torch.float64)
        target = HuggingFaceTarget(model)
        expected = speculator_outputs(lambda target=target, **options: Speculator(target, **options))
        assert expected["plain"] == expected["trees"] and expected["plain sampled"] == expected["trees sampled"]
        both = told[folder.name]
        if not number:
            assert both.pop("reused") > 0, "rows were copied"
            with Engine(target, drafter="none", budget=1, max_lanes=1) as engine:
                expected["engine"] = engine_outputs(engine)
        assert both == expected, folder.name


@needs_accelerate
def test_the_command_generates_in_two_processes(folders: list[Path]) -> None:
    options = ["--model", folders[0], "--dtype", "float64", "--max-new-tokens", 12, "--threads", 1, "--json"]
    ran = torchrun("-m", "branchwise", "generate", "hellohello", *options, "--tensor-parallel")
    assert ran.returncode == 0, ran.stderr[-4000:]
    alone = CliRunner().invoke(app, ["generate", "hellohello", *map(str, options)])
    records = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [record["token_ids"] for record in records] == [json.loads(alone.stdout)["token_ids"]]


@needs_accelerate
def test_the_script_of_the_documentation_runs(folders: list[Path], tmp_path: Path) -> None:
    """The one block that is no page's own Python: it is marked ``py`` and belongs to torchrun."""
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "two.py").write_text(script, encoding="utf-8")
    ran = torchrun(tmp_path / "two.py", folders[0])
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert len(ran.stdout.strip()) > 20


@pytest.mark.parametrize(
    ("family", "processes", "said"),
    [
        ("llama", 3, "its 4 attention heads do not divide by 3 processes. Instead: start 2 of them"),
        ("llama", 4, "its 2 key-value heads do not divide by 4 processes. Instead: start 2 of them"),
        ("gpt2", 2, "transformers has no tensor-parallel plan for it"),
    ],
)
def test_what_cannot_be_split_is_refused_before_it_is_loaded(
    family: str, processes: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_family(family, tmp_path)
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(UnsupportedModel, match=said):
        load_sharded(folder)


def test_one_process_is_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="needs at least 2 processes, there is 1; start them with torchrun"):
        load_sharded(tmp_path)
    ran = CliRunner().invoke(app, ["generate", "hello", "--tensor-parallel"])
    assert ran.exit_code == 2 and "torchrun" in ran.stderr


def test_a_whole_model_needs_no_others(folders: list[Path]) -> None:
    model, _ = load(folders[0])
    for use in (ShardedTarget, follow):
        with pytest.raises(ValueError, match=r"is whole in every process: load it with .*load_sharded"):
            use(model)


def test_a_share_of_a_model_cannot_run_alone(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load(folders[0])
    monkeypatch.setattr(type(model), "tp_size", 2)
    with pytest.raises(ValueError, match="ShardedTarget, on the others call"):
        Speculator(model)
    target = HuggingFaceTarget(model)
    with pytest.raises(ValueError, match="spread over several processes here"):
        Speculator(target, drafter="medusa", drafter_options={"head": str(folders[0])})
