"""The limits of a machine, and attention and forwards as multiples of them, on small numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from branchwise.attention import registry
from branchwise.bench import roofline
from branchwise.bench.attention_calls import Shape, default_ways, prepare
from branchwise.bench.limits import Limits
from branchwise.bench.roofline_forward import fill, weight_bytes
from branchwise.cli import app
from branchwise.target import HuggingFaceTarget
from tiny_folder import save_tiny_model
from zoo import tiny_llama

pytestmark = pytest.mark.core

LIMITS = Limits(bytes_per_second=1e9, operations_per_second={"float32": 1e12, "bfloat16": 2e12})


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchwise.bench.limits._READ_BYTES", 2**20)
    monkeypatch.setattr("branchwise.bench.limits._SIDES", {"cpu": (64,)})
    monkeypatch.setattr(roofline, "_ROTATED_BYTES", 2**20)


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


SMALL = ("attention", "--nodes", "1,5", "--contexts", "20,40", "--heads", "4x2x16,2x2x16", "--repeats", 2)


def test_the_longer_of_two_times_is_the_limit() -> None:
    assert LIMITS.seconds(2e9, 1e12, torch.float32) == 2.0
    assert LIMITS.seconds(2e9, 6e12, torch.float32) == 6.0
    assert LIMITS.seconds(2e9, 6e12, torch.bfloat16) == 3.0


def test_work_of_a_shape_by_hand() -> None:
    # 4 heads on 2 of width 8, 3 nodes after 5 tokens: 2 x 2 x 8 rows of keys and values, 2 x 4 x 3 of queries, outputs
    shape = Shape(heads=4, kv_heads=2, dim=8, nodes=3, context=5, dtype=torch.bfloat16)
    assert shape.read_bytes == (32 + 24) * 8 * 2
    assert shape.operations == 2 * 2 * (4 * 3 * 8 * 8)
    assert len(shape.tree()) == 3


@pytest.mark.parametrize("way", ["auto", "folded", "sdpa", "reference"])
def test_every_way_computes_the_same(way: str) -> None:
    shape = Shape(heads=4, kv_heads=2, dim=16, nodes=6, context=9, dtype=torch.float32)
    device = torch.device("cpu")
    query, key, value = shape.query(device), shape.rows(device), shape.rows(device)
    outputs = [prepare(name, shape, query)(key, value) for name in (way, "reference")]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("_quick")
def test_a_sweep_from_the_command_line(tmp_path: Path) -> None:
    # pictures are drawn with matplotlib, an extra
    pytest.importorskip("matplotlib", reason="the picture needs the extra plot")
    out, picture = tmp_path / "r.json", tmp_path / "r.png"
    result = bench(*SMALL, "--dtypes", "bfloat16", "--json", out, "--plot", picture)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert record == json.loads(out.read_text(encoding="utf-8"))
    assert len(record["rows"]) == 2 * 2 * 2
    for row in record["rows"]:
        assert set(row["ways"]) == set(default_ways(torch.device("cpu")))
        for way in row["ways"].values():
            assert way["equal"] and way["x_limit"] > 0
            assert way["x_limit"] == pytest.approx(way["ms"] / row["limit_ms"], rel=0.05)
    assert record["wrong"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in result.stdout


@pytest.mark.usefixtures("_quick")
def test_a_wrong_way_is_marked_and_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(query, key, value, *_, **__):
        return torch.zeros_like(query)

    monkeypatch.setitem(registry._BACKENDS, "wrong", wrong)
    result = bench(*SMALL, "--backends", "wrong,sdpa", "--dtypes", "float32")
    assert result.exit_code == 1
    assert "wrong" in result.stdout and "WRONG" in result.stdout


@pytest.mark.usefixtures("_quick")
def test_a_forward_from_the_command_line(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    result = bench(
        "forward", "--model", folder, "--dtype", "float32", "--nodes", "1,4", "--contexts", "7,30,100000",
        "--repeats", 2, "--backends", "folded,reference",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert [(row["context"], row["nodes"]) for row in record["rows"]] == [(7, 1), (7, 4), (30, 1), (30, 4)]
    assert record["skipped_contexts"] == [100000]
    assert set(record["rows"][0]["ways"]) == {"folded", "reference"}
    assert str(tmp_path) not in result.stdout


@pytest.mark.parametrize("context", [1, 2, 90])
def test_a_filled_lane_has_that_many_rows(context: int) -> None:
    target = HuggingFaceTarget(tiny_llama())
    lane = fill(target, context)
    assert target.length(lane) == context
    target.cache.check_integrity()
    assert all(target.cache.rows(lane, index)[0].shape[1] == context for index in range(len(target.cache.layers)))


def test_weights_that_are_read() -> None:
    model = tiny_llama()
    embedding = model.get_input_embeddings().weight
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    tied = model.get_output_embeddings().weight is embedding
    assert weight_bytes(model) == total - (0 if tied else embedding.numel() * embedding.element_size())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--nodes", "0"), "nodes must be >= 1, got 0"),
        (("--nodes", "1,x"), "--nodes must be whole numbers with commas between, got 'x'"),
        (("--contexts", ""), "--contexts is empty"),
        (("--heads", "9x3"), "--heads must be like 9x3x64"),
        (("--heads", "9x2x64"), "9 query heads are not a multiple of 2 key/value heads"),
        (("--dtypes", "int8"), "no dtype is named 'int8' here; there are float32, bfloat16, float16"),
        (("--backends", "fast"), "no way of attention is named 'fast'; there are auto, reference"),
        (("--backends", "flashinfer"), "needs the package flashinfer-python"),
        (("--repeats", "0"), "repeats must be >= 1"),
        (("--threads", "0"), "threads must be >= 1"),
        (("--json", "/no/such/folder/x.json"), "does not exist"),
        (("--plot", "/no/such/folder/x.png"), "does not exist"),
        (("--device", "cuda:77"), "device 'cuda:77' cannot be used here"),
    ],
)
def test_bad_input(more: tuple[str, ...], says: str) -> None:
    result = bench(*SMALL, *more)
    assert result.exit_code == 2
    assert says in result.stderr and result.stderr.count("\n") == 1


def test_a_missing_matplotlib_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = bench(*SMALL, "--plot", tmp_path / "x.png")
    assert (result.exit_code, "pip install 'branchwise[plot]'" in result.stderr) == (2, True)


def test_bench_with_a_file_is_still_bench_prompts(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    short, long = bench(missing), bench("prompts", missing)
    assert (short.exit_code, short.stderr) == (long.exit_code, long.stderr)
    assert bench("--methods", "plain", missing).stderr == short.stderr, "options may come first"
    assert "Missing argument" in bench().stderr
    for name in ("prompts", "attention", "forward"):
        assert name in bench("--help").stdout


def test_a_bar_is_for_the_first_way_and_so_is_sdpa() -> None:
    def row(**ms: float) -> dict:
        ways = {name: {"ms": time, "x_limit": time / 2} for name, time in ms.items()}
        return {"dtype": "float32", "heads": 9, "kv_heads": 3, "dim": 64, "context": 8, "nodes": 2, "ways": ways}

    assert roofline.misses([row(native=3.0, sdpa=4.0)], bar=1.6) == []
    assert roofline.misses([row(native=3.0, folded=99.0)], bar=1.6) == []
    (line,) = roofline.misses([row(native=3.0, sdpa=4.0), row(native=3.5, sdpa=4.0)], bar=1.6)
    assert line == "native at float32 9x3x64, context 8, 2 nodes: 1.75x the limit, the bar is 1.6x"
    (line,) = roofline.misses([row(native=3.0, sdpa=2.0)], bar=1.6)
    assert "slower than sdpa (2.0 ms)" in line


@pytest.mark.usefixtures("_quick")
def test_a_missed_bar_is_the_exit_code() -> None:
    result = bench(*SMALL, "--dtypes", "float32", "--bar", 1e-9)
    assert result.exit_code == 1
    assert "the bar is 1e-09x" in result.stdout
    assert json.loads(result.stdout.splitlines()[-1])["misses"]
