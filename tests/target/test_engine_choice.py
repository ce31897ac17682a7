"""Which engine runs a model: asked for, refused, fallen back to, missing."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from branchwise import BranchwiseWarning, Speculator, UnsupportedModel, generate
from branchwise.attention.native import NativeUnavailable
from branchwise.cli import app
from branchwise.decode.attach import as_target
from branchwise.target import HuggingFaceTarget, native, native_engine
from tiny_folder import save_tiny_model
from zoo import SUPPORTED, build

pytestmark = pytest.mark.core

LLAMA = next(family for family in SUPPORTED if family.name == "llama")
GPT2 = next(family for family in SUPPORTED if family.name == "gpt2")
PROMPT_IDS = torch.tensor([[7, 3, 11, 3]])


@pytest.fixture
def without_openvino(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    for name in [name for name in sys.modules if name.startswith("branchwise.target.openvino")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def without_native(monkeypatch):
    monkeypatch.setattr(native, "native_library", lambda: native_engine.NativeLibrary(None, "there is no C compiler"))


def test_transformers_is_the_engine_unless_another_is_asked_for():
    assert isinstance(as_target(build(LLAMA)), HuggingFaceTarget)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "onnx"}, "engine must be one of transformers, native, openvino, auto, got 'onnx'"),
        (
            {"weights": "int8"},
            "weights='int8' goes with engine='native' or 'openvino'; 'transformers' takes the model as loaded",
        ),
        ({"engine": "auto", "weights": "int8"}, "goes with engine='native' or 'openvino'; 'auto'"),
    ],
)
def test_wrong_words_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Speculator(build(LLAMA), **options)


def test_a_ready_target_has_its_engine():
    target = HuggingFaceTarget(build(LLAMA))
    with pytest.raises(ValueError, match="engine='auto' is for models; what was given is a HuggingFaceTarget"):
        Speculator(target, engine="auto")


def test_a_missing_package_is_named_with_its_extra(without_openvino):
    with pytest.raises(ImportError, match=r"pip install 'branchwise\[openvino\]'"):
        Speculator(build(LLAMA), engine="openvino")


@pytest.mark.usefixtures("without_openvino", "without_native")
def test_auto_does_without_either_and_says_so():
    with pytest.warns(BranchwiseWarning, match="engine 'auto' takes transformers: the compiled engine needs OpenVINO"):
        assert isinstance(as_target(build(LLAMA), "auto"), HuggingFaceTarget)


@pytest.mark.usefixtures("without_native")
def test_native_says_what_it_lacks_and_auto_takes_openvino():
    with pytest.raises(NativeUnavailable, match="'native' is not available: there is no C compiler; use engine="):
        Speculator(build(LLAMA).float(), engine="native")
    # OpenVINO is an extra: the tests run without it, too
    pytest.importorskip("openvino", reason="the compiled engine is an extra of its own: branchwise[openvino]")
    assert as_target(build(LLAMA).float(), "auto").engine == "openvino"


# only where the engine is worth while is it what "auto" chooses
@pytest.mark.skipif(not native.is_worth_while(), reason="this processor does not multiply bfloat16, or has no compiler")
def test_auto_takes_native_where_it_is_worth_while():
    assert as_target(build(LLAMA).float(), "auto").engine == "native"
    assert as_target(build(LLAMA).bfloat16(), "native").weights == "bf16"


@pytest.mark.parametrize("engine", ["native", "openvino"])
def test_a_family_that_is_not_known_is_refused_and_auto_falls_back(engine):
    if engine == "openvino":
        # OpenVINO is an extra: the tests run without it, too
        pytest.importorskip("openvino", reason="the compiled engine is an extra of its own: branchwise[openvino]")
    model = build(GPT2).float()
    with pytest.raises(UnsupportedModel, match=r"'gpt2'.*compiles gemma3_text, llama.*engine='transformers'"):
        Speculator(model, engine=engine)
    with pytest.warns(BranchwiseWarning, match="engine 'auto' takes transformers: .*'gpt2'"):
        speculator = Speculator(model, engine="auto")
    assert isinstance(speculator.target, HuggingFaceTarget)


def test_the_openvino_engine_and_its_formats():
    # OpenVINO is an extra: the tests run without it, too
    pytest.importorskip("openvino", reason="the compiled engine is an extra of its own: branchwise[openvino]")
    from branchwise.target.openvino import OpenVinoTarget

    assert isinstance(as_target(build(LLAMA).float(), "openvino"), OpenVinoTarget)
    assert as_target(build(LLAMA).bfloat16(), "openvino").weights == "bf16"
    assert as_target(build(LLAMA).bfloat16(), "openvino", "f32").weights == "f32"
    with pytest.raises(ValueError, match="weights must be one of f32, bf16, int8, int4, got 'int3'"):
        as_target(build(LLAMA).float(), "openvino", "int3")
    output = generate(
        build(LLAMA).float(), PROMPT_IDS, engine="openvino", weights="f32", max_new_tokens=3, do_sample=False
    )
    assert output.shape == (1, 7)


@pytest.mark.parametrize("engine", ["native", "openvino"])
def test_the_command_line_takes_engine_and_weights(engine, tmp_path, monkeypatch):
    if engine == "openvino":
        # OpenVINO is an extra: the tests run without it, too
        pytest.importorskip("openvino", reason="the compiled engine is an extra of its own: branchwise[openvino]")
    elif native_engine.native_library().library is None:
        # the native engine is compiled on the machine: without a compiler there is none
        pytest.skip(native_engine.native_library().reason)
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    folder = save_tiny_model(tmp_path / "model")
    common = ["generate", "abc abc", "--model", str(folder), "--max-new-tokens", "8", "--json", "--threads", "1"]

    def run(*options: str):
        return CliRunner().invoke(app, [*common, *options])

    expected = json.loads(run("--drafter", "none").stdout)["text"]
    result = run("--engine", engine, "--weights", "f32", "--compare")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["text"] == expected
    assert record["compare"]["tokens_agree"] is True
    assert (record["engine"], record["weights"]) == (engine, "f32")
    assert run("--engine", engine, "--weights", "int8").exit_code == 0
    assert len(list((tmp_path / "cache" / "engines").iterdir())) == 1
    refused = run("--weights", "int8")
    assert refused.exit_code == 2
    assert "weights='int8' goes with engine='native' or 'openvino'" in refused.stderr
