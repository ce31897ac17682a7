"""Names, workers that die, and figures of a comparison with peers; no other library is needed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from branchwise.bench.methods import Run, TreeSpec
from branchwise.bench.peers.assignment import Assignment
from branchwise.bench.peers.chart import plot_peers
from branchwise.bench.peers.configuration import Configuration, configurations
from branchwise.bench.peers.genai_peer import read_timing as read_genai_timing
from branchwise.bench.peers.llama_cpp_peer import LlamaCppPeer
from branchwise.bench.peers.llama_server import read_timing
from branchwise.bench.peers.process import WorkerDied, WorkerProcess
from branchwise.bench.peers.remote import PeerFailed, RemotePeer
from branchwise.bench.peers.report import print_peers
from branchwise.bench.peers.summary import summarise_peers
from branchwise.bench.peers.transformers_peer import exit_layer
from branchwise.bench.peers.worker import Worker
from branchwise.bench.prompts import Prompt
from branchwise.bench.runner import Results, Row, run_methods
from branchwise.bench.stopwatch import Timing

pytestmark = pytest.mark.core

GIVEN = Assignment("fake", "m", "auto", None, 1, (2,), 256, 0.0)

#: a worker that does what the first token of the prompt says
FAKE = """
import json, os, signal, sys, time
made = []
for line in sys.stdin:
    request = json.loads(line)
    idle = {"idle": [1.0, 0.25]}
    if "open" in request:
        answer = {"facts": {"versions": {}, "weights": "w", "threads": os.environ["OMP_NUM_THREADS"]}}
    elif "make" in request:
        answer = {"error": "ValueError: no '/home/me/m.gguf' at http://a/b/c"} if request["make"] == "refused" else {}
    else:
        order = request["prompt"][0]
        if order == 1:
            print("out of cheese", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if order == 2:
            sys.exit(3)
        if order == 3:
            time.sleep(60)
        timing = dict(first_run_seconds=0.1, decode_seconds=1.0, first_run_tokens=1, decode_tokens=2, runs=3)
        timing["cpu_seconds"] = 1.0
        answer = {"tokens": [os.getpid(), order, request["tokens"]], "timing": timing}
    print(json.dumps(answer | idle), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    return (sys.executable, str(script))


def names(*words: str, **options: bool) -> list[str]:
    return [one.name for one in configurations(words, **options)]


def test_a_peer_stands_for_its_methods() -> None:
    assert names("transformers", "llama.cpp:lookup-7") == [
        "transformers:plain",
        "transformers:lookup-3",
        "transformers:lookup-10",
        "transformers:early-exit",
        "llama.cpp:lookup-7",
    ]
    assert names("branchwise", with_head=True) == [
        "branchwise:plain",
        "branchwise:auto+head-17",
        "branchwise:auto+head",
    ]
    assert {name.partition(":")[0] for name in names()} == {
        "transformers",
        "llama.cpp",
        "openvino-genai",
        "branchwise",
        "branchwise/native-bf16",
        "branchwise/native-int4",
    }


def test_drafter_and_budget_of_own_methods() -> None:
    assert Configuration("branchwise/native-int8", "mixed+head-33").spec == TreeSpec("mixed", False, True, None, "33")
    assert Configuration("branchwise", "auto").spec == TreeSpec("auto", False, False, None, "auto")
    assert Configuration("branchwise", "auto+model").spec == TreeSpec("auto", True, False, None, "auto")
    assert Configuration("branchwise", "plain").spec is None
    assert Configuration("transformers", "lookup-3").spec is None
    assert Configuration("llama.cpp", "plain").worker == "llama.cpp:plain"
    assert Configuration("openvino-genai", "plain").worker == "openvino-genai"
    assert Configuration("branchwise/native-int8", "plain").is_own and not Configuration("llama.cpp", "plain").is_own


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("vllm",), "there are transformers, llama.cpp"),
        (("transformers:lookup-0",), "there are plain, lookup-N, early-exit"),
        (("openvino-genai:ngram-cache",), "there are plain, lookup-N"),
        (("branchwise:",), "branchwise:mixed-17"),
        (("transformers", "transformers:plain"), "given twice: transformers:plain"),
    ],
)
def test_wrong_names_are_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        configurations(words)


def test_a_worker_that_crashes_costs_one_row_and_another_takes_its_place(fake: tuple[str, ...]) -> None:
    prompts = [(Prompt(str(order), "c", "t", "x"), [order]) for order in (7, 1, 8)]
    peer = RemotePeer(GIVEN, command=fake)
    methods = {"a": lambda: peer.method("a"), "b": lambda: peer.method("b"), "r": lambda: peer.method("refused")}
    try:
        results = run_methods(methods, prompts, warm_up=[9], max_new_tokens=5)
    finally:
        peer.close()
    # prompt 1 goes to b first: the crash is b's, and a, which a new worker answers, crashes there as well
    assert set(results.errors) == {"a", "b", "r"}
    assert results.errors["b"] == "PeerFailed: the worker was ended by SIGSEGV: out of cheese"
    assert results.errors["r"] == "PeerFailed: ValueError: no 'm.gguf' at http://a/b/c"
    assert [(row.method, row.run.tokens[1:]) for row in results.rows] == [("a", (7, 5)), ("b", (7, 5))]


def test_after_a_crash_others_of_the_same_peer_go_on(fake: tuple[str, ...]) -> None:
    peer = RemotePeer(GIVEN, command=fake)
    first, second = peer.method("first"), peer.method("second")
    before = first.run([7], 2, 0).tokens[0]
    assert second.run([7], 2, 0).tokens[0] == before, "one process for both"
    with pytest.raises(PeerFailed, match="exit code 3"):
        first.run([2], 2, 0)
    assert second.run([7], 2, 0).tokens[0] != before
    assert peer.facts["threads"] == "1"
    assert (peer.idle_seconds, peer.idle_cpu_seconds) == (3.0, 0.75)
    peer.close()


def test_a_worker_that_hangs_is_ended(fake: tuple[str, ...]) -> None:
    worker = WorkerProcess(fake, threads=1)
    with pytest.raises(WorkerDied, match="gave no answer within 1 s"):
        worker.ask({"run": "m", "prompt": [3], "tokens": 1}, limit_seconds=1.0)


def test_a_peer_that_cannot_be_opened_is_not_tried_again(tmp_path: Path) -> None:
    script = tmp_path / "once.py"
    script.write_text(f"open({str(tmp_path / 'tries')!r}, 'a').write('x'); import sys; sys.exit('no such library')")
    peer = RemotePeer(GIVEN, command=(sys.executable, str(script)))
    for _ in range(2):
        with pytest.raises(PeerFailed, match="ended with exit code 1: no such library"):
            peer.method("plain")
    assert (tmp_path / "tries").read_text() == "x"


def test_no_variable_makes_waiting_workers_busy(fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    shown = (sys.executable, "-c", "import os, json; input(); print(json.dumps(sorted(os.environ)), flush=True)")
    worker = WorkerProcess(shown, threads=1)
    assert "OMP_WAIT_POLICY" not in worker.ask({}, 60.0) and "OMP_WAIT_POLICY" in os.environ
    worker.close()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("llama_cpp", "xllamacpp"):
        monkeypatch.setitem(sys.modules, package, None)
    answer = Worker().answer({"open": vars(GIVEN) | {"peer": "llama.cpp"}})
    assert answer["error"].startswith("ImportError") and "pip install 'branchwise[peers]'" in answer["error"]


def test_a_model_without_its_gguf_file_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", io)  # any module will do
    with pytest.raises(ValueError, match="--gguf FILE"):
        LlamaCppPeer(replace(GIVEN, peer="llama.cpp"))


class FakeLlama:
    """The loop of llama-cpp-python's ``Llama.generate``: a forward, its tokens one by one, a draft for the next."""

    made: ClassVar[list[FakeLlama]] = []

    def __init__(self, path: str, draft_model: object = None, **options: object) -> None:
        self.path, self.draft_model, self.options, self.resets = path, draft_model, options, 0
        FakeLlama.made.append(self)

    def reset(self) -> None:
        self.resets += 1

    def set_seed(self, seed: int) -> None:
        self.seed = seed

    def generate(self, tokens: list[int], **sampling: object) -> Iterator[int]:
        self.sampling = sampling
        accepted = 0
        while True:
            yield from [5] * (accepted + 1)
            accepted = 0 if self.draft_model is None else len(self.draft_model([*tokens]))


class FakeLookup:
    def __init__(self, max_ngram_size: int, num_pred_tokens: int) -> None:
        assert max_ngram_size == 2
        self.tokens = num_pred_tokens

    def __call__(self, prefix: list[int]) -> list[int]:
        return [5] * self.tokens


@pytest.fixture
def llama_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LlamaCppPeer:
    monkeypatch.setattr(FakeLlama, "made", [])
    package = ModuleType("llama_cpp")
    package.Llama, package.__version__ = FakeLlama, "9"
    package.llama_print_system_info = lambda: b"CPU : AVX2 = 1 | AVX512 = 0 | FMA = 1 | "
    speculative = ModuleType("llama_cpp.llama_speculative")
    speculative.LlamaPromptLookupDecoding = FakeLookup
    for module in (package, speculative):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("branchwise.bench.peers.llama_cpp_peer.gguf_format", lambda file: "Q4_1 GGUF")
    return LlamaCppPeer(replace(GIVEN, peer="llama.cpp", gguf=str(tmp_path / "m.gguf"), threads=3))


def test_llama_cpp_python_is_preferred_and_its_forwards_are_counted(llama_cpp: LlamaCppPeer) -> None:
    assert llama_cpp.facts["versions"] == {"llama-cpp-python": "9"}
    assert llama_cpp.facts["compiled_for"] == ["AVX2", "FMA"]
    plain = llama_cpp.method("plain").run([1, 2], 7, seed=4)
    drafted = llama_cpp.method("lookup-3").run([1, 2], 7, seed=4)
    assert plain.tokens == drafted.tokens == (5,) * 7
    # 1, then 4, then 2 of the third forward's
    assert (plain.timing.runs, drafted.timing.runs, drafted.timing.decode_tokens) == (7, 3, 6)
    first, second = FakeLlama.made
    assert first.draft_model is None and second.draft_model is not None
    assert first.options["n_threads"] == first.options["n_threads_batch"] == 3
    assert (first.resets, first.seed, first.sampling["temp"]) == (1, 4, 0.0)
    with pytest.raises(ValueError, match="xllamacpp"):
        llama_cpp.method("ngram-cache")


def test_a_text_of_llama_cpp_python_ends_at_a_stop_token(llama_cpp: LlamaCppPeer, monkeypatch) -> None:
    monkeypatch.setattr(FakeLlama, "generate", lambda *_, **__: iter([7, 2, 9]))
    assert llama_cpp.method("plain").run([1], 7, seed=0).tokens == (7, 2)


def test_the_clock_of_llama_cpp() -> None:
    told = {"prompt_n": 61, "prompt_ms": 500.0, "predicted_n": 21, "predicted_ms": 2000.0, "draft_n_accepted": 13}
    assert read_timing(told, 61, cpu_seconds=5.0) == Timing(0.5, 2.0, 1, 20, 8, 4.0)
    with pytest.raises(RuntimeError, match="read 61 tokens of a prompt of 62"):
        read_timing(told, 62, 5.0)


def test_early_exit_applies_where_the_config_is_obeyed() -> None:
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    sizes["num_hidden_layers"] = 8
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    assert exit_layer(model) == 2
    assert model.config.num_hidden_layers == 8
    assert not model.model.layers[-1]._forward_hooks
    with pytest.raises(ValueError, match="Llama4Ignorant runs all layers"):
        exit_layer(ignorant(sizes))


def test_the_clock_of_genai() -> None:
    # one token, then four, then three
    timing = read_genai_timing(500.0, [9000.0, 9500.0, 11000.0], [1, 4, 3], cpu_seconds=5.0)
    assert timing == Timing(0.5, 2.0, 1, 7, 3, 4.0)


def ignorant(sizes: dict[str, int]) -> LlamaForCausalLM:
    """A model whose forward goes through all layers whatever its config says."""

    class Llama4Ignorant(LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor, **options: object) -> None:
            hidden = self.model.embed_tokens(input_ids)
            place = self.model.rotary_emb(hidden, torch.arange(input_ids.shape[1])[None])
            for layer in self.model.layers:
                hidden = layer(hidden, position_embeddings=place)

    return Llama4Ignorant(LlamaConfig(**sizes)).eval()


def row(
    question: str, category: str, method: str, tokens_per_second: float, tokens: tuple[int, ...] = (1, 2, 3)
) -> Row:
    timing = Timing(0.05, 10 / tokens_per_second, 1, 10, 4, 1.0)
    return Row(Prompt(question, category, "t", "x"), 5, method, 0, Run(tokens, timing))


@pytest.fixture
def record() -> dict:
    asked = configurations(
        ["branchwise:plain", "branchwise:auto", "branchwise:ngram-5", "llama.cpp:plain", "llama.cpp:lookup-3"]
        + ["openvino-genai:plain"]
    )
    results = Results([one.name for one in asked])
    speeds = {
        "branchwise:plain": (10, 10, 10),
        "branchwise:auto": (40, 20, 30),
        "branchwise:ngram-5": (99,),  # died after the first prompt: faster than any, but no candidate for the best
        "llama.cpp:plain": (20, 20, 20),
        "llama.cpp:lookup-3": (10, 24, 60),
    }
    for name, each in speeds.items():
        for number, speed in enumerate(each):
            # engines need not agree with each other; one output of the lookup is not llama.cpp's own
            tokens = (7, 8, 9) if name.startswith("llama.cpp") else (1, 2, 3)
            tokens = (7, 1) if (name, number) == ("llama.cpp:lookup-3", 1) else tokens
            results.rows.append(row(str(number), "odd" if number == 1 else "even", name, speed, tokens))
    results.errors["branchwise:ngram-5"] = "PeerFailed: the worker was ended by SIGSEGV"
    results.errors["openvino-genai:plain"] = "PeerFailed: ImportError: missing"
    peers = {one.peer: {"weights": f"{one.peer} numbers", "idle_cpu_share": 0.0} for one in asked}
    peers["llama.cpp"] |= {"idle_cpu_share": 0.5, "compiled_for": ["AVX2"], "processor_has": "AVX512"}
    return {
        **summarise_peers(results, asked, is_greedy=True),
        "peers": peers,
        "skipped": {"9": "too long"},
        "provenance": {"cpu": "a processor", "model": {"name": "m"}},
        "settings": {"prompts": 3, "max_new_tokens": 11, "temperature": 0.0, "threads": 2},
    }


def test_figures_are_set_against_the_best_of_this_library(record: dict) -> None:
    methods = record["methods"]
    assert (record["best"], record["fastest_peer"]) == ("branchwise:auto", "llama.cpp:lookup-3")
    assert methods["llama.cpp:lookup-3"]["overall"]["median_tokens_per_second"] == 24
    assert methods["llama.cpp:lookup-3"]["overall"]["ratio_to_best"] == pytest.approx(24 / 30)
    assert methods["llama.cpp:lookup-3"]["categories"]["even"]["ratio_to_best"] == 1.0  # medians 35 and 35
    assert methods["llama.cpp:lookup-3"]["categories"]["odd"]["ratio_to_best"] == pytest.approx(24 / 20)
    assert methods["branchwise:auto"]["overall"]["ratio_to_best"] == 1.0
    equal = {name: (m["overall"] or {}).get("equal") for name, m in methods.items()}
    assert equal["llama.cpp:lookup-3"] == 2 and equal["branchwise:auto"] == 3
    assert methods["openvino-genai:plain"] == {
        "peer": "openvino-genai",
        "error": "ImportError: missing",
        "overall": None,
        "categories": {},
    }


def test_nothing_is_compared_under_sampling() -> None:
    asked = configurations(["llama.cpp:plain"])
    results = Results(["llama.cpp:plain"], rows=[row("0", "c", "llama.cpp:plain", 10)])
    found = summarise_peers(results, asked, is_greedy=False)
    assert "equal" not in found["methods"]["llama.cpp:plain"]["overall"]
    assert found["best"] is None and found["methods"]["llama.cpp:plain"]["overall"]["ratio_to_best"] is None


def test_failures_keep_their_line_in_the_table(record: dict) -> None:
    paper = io.StringIO()
    print_peers(record, paper)
    text = paper.getvalue()
    table = {line.split()[0]: line for line in text.split("\n\n")[0].splitlines() if ":" in line.split()[0]}
    assert table["openvino-genai:plain"].split()[1] == "(FAILED)"
    assert "0.80" in table["llama.cpp:lookup-3"] and table["llama.cpp:lookup-3"].endswith("2/3")
    assert "openvino-genai:plain failed: ImportError: missing" in text
    assert "branchwise's best / fastest peer: 1.25" in text
    assert "llama.cpp used 50% of a processor while others ran" in text
    assert "llama.cpp was compiled without AVX512, which this processor has" in text
    assert "prompt 9 was skipped: too long" in text


def test_failures_keep_their_bar(record: dict, tmp_path: Path) -> None:
    # pictures are drawn with matplotlib, an extra
    pytest.importorskip("matplotlib", reason="the picture needs the extra plot")
    plot_peers(record, tmp_path / "p.svg")
    drawn = (tmp_path / "p.svg").read_text()
    assert drawn.count("<!-- failed -->") == 2 and "a processor" in drawn
