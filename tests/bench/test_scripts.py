"""The scripts of the top-level bench/ folder, on small numbers."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from branchwise.target.native_engine import native_library
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core
BENCH = Path(__file__).parents[2] / "bench"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_an_always_wrong_drafter_leaves_no_rows() -> None:
    found = script("cache_memory").adversary_steps(steps=100, budget=9)
    assert (found["accepted_drafts"], found["steps_with_other_rows"]) == (0, 0)
    assert found["rows"][-1]["committed"] == 2 + 100, "the prompt but for its root, and one token per step"


def test_the_peak_of_a_long_lane_stays_near_its_line() -> None:
    found = script("cache_memory").peak_of_one_lane(budget=33, tokens=3000)
    assert 1.0 <= found["steady_ratio"] <= found["peak_ratio"] <= 1.3
    assert all(growth <= 1.26 for growth in found["growth_steps"] if growth)


def test_both_forwards_compute_the_same(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = save_tiny_model(tmp_path / "model")
    options = ["--model", str(folder), "--context", "100", "--nodes", "7", "--repeats", "3", "--dtype", "float32"]
    monkeypatch.setattr(sys, "argv", ["forward.py", *options, "--threads", "1", "--bar", "1000"])
    assert script("forward").main() == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["equal_best_tokens"] == 7
    assert record["greatest_logit_difference"] < 1e-4
    assert record["met"] is True
    assert str(tmp_path) not in json.dumps(record)


def test_draft_costs_are_measured_for_every_drafter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    options = ["--history", "60,300", "--steps", "6", "--vocab-size", "100", "--stored-tokens", "6000"]
    monkeypatch.setattr(sys, "argv", ["draft_cost.py", *options])
    script("draft_cost").main()
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = ["ngram", "suffix", "recycling", "mixed", "suffix with a full store"]
    assert [(row["drafter"], row["history"]) for row in record["rows"]] == [(n, h) for n in names for h in (60, 300)]
    assert all(row["step_ms"] > 0 and 1 <= row["nodes"] <= 33 for row in record["rows"])
    assert 30 < record["store"]["bytes_per_token"] <= record["store"]["worst"] <= 64


def test_the_parts_of_an_eagle_draft_add_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    ways = ["torch", "f32"] if native_library().multiplies_bfloat16 else ["torch"]
    options = f"--draft-vocab 50 --repeats 2 --dtype float32 --depths 1,4 --ways {','.join(ways)}".split()
    monkeypatch.setattr(sys, "argv", ["eagle_draft.py", *options])
    assert script("eagle_draft").main() == 0
    drafts = json.loads(capsys.readouterr().out.splitlines()[-1])["drafts"]
    assert [(draft["way"], draft["depth"]) for draft in drafts] == [(way, depth) for way in ways for depth in (1, 4)]
    for draft in drafts:
        assert 1 <= draft["passes"] <= draft["depth"] and draft["nodes"] > 1 and draft["drafts"] >= 1
        assert 0 < draft["rest_ms"] < draft["total_ms"] and 0 < draft["head_ms"] < draft["total_ms"]


def test_early_exits_write_the_same_in_both_modes(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = save_tiny_model(tmp_path / "model")
    options = ["--model", str(folder), "--exits", "1", "--max-new-tokens", "8", "--dtype", "float32", "--limit", "2"]
    monkeypatch.setattr(sys, "argv", ["early_exit.py", *options, "--threads", "1"])
    assert script("early_exit").main() == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(record["methods"]) == ["plain", "reuse-1", "recompute-1"]
    reuse, recompute = record["methods"]["reuse-1"], record["methods"]["recompute-1"]
    assert reuse["tokens_per_step"] == recompute["tokens_per_step"], "they draft the same trees"
    assert reuse["ratio_to_recompute"] > 0
    assert str(tmp_path) not in json.dumps(record)


def test_serving_gives_equal_texts_with_and_without_trees(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = save_tiny_model(tmp_path / "model")
    lines = [{"question_id": str(i), "category": "c", "turns": [f"prompt {i}"]} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = ["--prompts", str(tmp_path / "prompts.jsonl"), "--model", str(folder), "--dtype", "float64"]
    options += ["--loads", "1", "3", "--new", "8", "--repeats", "1", "--long-prompt", "100"]
    monkeypatch.setattr(sys, "argv", ["serving.py", *options])
    script("serving").main()  # the exit code depends on the machine's mood when gaps are a few milliseconds
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [load["requests"] for load in record["loads"]] == [2, 6]
    assert all(load["different_texts"] == 0 and load["ratio"] > 0 for load in record["loads"])
    assert record["beside_long_prompt"]["prompt_tokens"] == 100 and record["beside_long_prompt"]["read_seconds"] > 0
    assert all(load["plain"]["drafted_per_step"] == 0 for load in record["loads"])
    assert str(tmp_path) not in json.dumps(record)


def test_a_soaked_server_answers_everything_once(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = save_tiny_model(tmp_path / "model", chat=True)
    options = ["--model", str(folder), "--dtype", "float64", "--requests", "60", "--longest", "20", "--clients", "4"]
    monkeypatch.setattr(sys, "argv", ["soak.py", *options])
    script("soak").main()  # memory of a run of a second says nothing, so the exit code does not
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sum(record["outcomes"].values()) == 60 and record["wrong"] == []
    assert set(record["outcomes"]) == {"answered", "left", "malformed"}
    assert [holds for text, holds in record["checks"].items() if "memory" not in text] == [True] * 3
    assert str(tmp_path) not in json.dumps(record)


def test_the_memory_of_a_soak_is_told_by_quarters() -> None:
    soak = script("soak")
    samples = [soak.Sample(at, resident=100 + 10 * (at // 10), pool=at, prefixes=7) for at in range(41)]
    found = soak.quarters(samples)
    assert [part["resident"] for part in found] == [100, 110, 120, 130]
    assert [part["pool"] for part in found] == [5, 15, 25, 35] and found[3]["prefixes"] == 7
    assert soak.quarters(samples[:1]) == [], "one sample says nothing about growth"


def test_a_request_through_an_idle_server_is_timed_beside_the_library(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = save_tiny_model(tmp_path / "model")
    lines = [{"question_id": str(i), "category": "c", "turns": [f"prompt {i}"]} for i in range(2)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = ["--prompts", str(tmp_path / "prompts.jsonl"), "--model", str(folder), "--dtype", "float64", "--new", "6"]
    monkeypatch.setattr(sys, "argv", ["server_latency.py", *options])
    script("server_latency").main()  # the ratio of a tiny model is all overhead
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(record["pairs"]) == 2 and record["ratio"] > 0
    assert all(pair["server"]["tokens"] == pair["library"]["tokens"] for pair in record["pairs"])
