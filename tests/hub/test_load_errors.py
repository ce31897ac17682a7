"""What is said when a folder or a Hub id gives no model: which, why, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from branchwise.hub import ModelNotFound, ModelNotLoadable, UnknownModel, load
from branchwise.hub.load_errors import explained
from branchwise.hub.memory import free_memory_bytes, memory_warning
from branchwise.hub.place import dtype_warning
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core


def said(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text and len(text) < 400, text
    return text


def test_an_encoder_decoder_is_named_without_a_list_of_classes(tmp_path: Path) -> None:
    config = T5Config(vocab_size=20, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelNotLoadable, match="is a T5 model, which transformers cannot load as a causal") as caught:
        load(tmp_path)
    said(caught.value)


def test_an_unknown_architecture_asks_for_a_newer_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "not-yet-invented"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        ModelNotLoadable, match=r"needs 'not-yet-invented', which transformers .* pip install --upgrade"
    ):
        load(tmp_path)


def test_code_of_the_checkpoint_is_not_run(tmp_path: Path) -> None:
    auto_map = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.Mine"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": auto_map}))
    (tmp_path / "mine.py").write_text("raise AssertionError('it was run')")
    with pytest.raises(ModelNotLoadable, match=r"brings code of its own, .* trust_remote_code=True and give the model"):
        load(tmp_path)


def test_a_folder_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds no config.json but nothing; give the folder that save_pretrained"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelNotFound, match=r"holds no config.json but notes.txt"):
        load(tmp_path)


def test_missing_and_damaged_weights(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelNotLoadable, match=r"the weights in .* are damaged .*; copy or download them again"):
        load(tmp_path)
    weights.unlink()
    with pytest.raises(ModelNotFound, match=r"holds no weights \(\*.safetensors\)"):
        load(tmp_path)


def changed_config(folder: Path, **values: object) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))


def test_weights_that_would_stay_random_are_refused(tmp_path: Path) -> None:
    """transformers fills what is missing with random numbers, and the command line does not show its warnings."""
    save_tiny_model(tmp_path)
    changed_config(tmp_path, num_hidden_layers=3)
    with pytest.raises(ModelNotLoadable, match=r"lack model\.layers\.2\..* and 7 more, which would be left at random"):
        load(tmp_path)
    AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path)).model.save_pretrained(tmp_path)
    with pytest.raises(ModelNotLoadable, match=r"lack lm_head\.weight, .* with its language model head") as caught:
        load(tmp_path)
    said(caught.value)


def test_weights_of_another_shape_are_refused_with_both_shapes(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    changed_config(tmp_path, intermediate_size=96)
    with pytest.raises(
        ModelNotLoadable, match=r"down_proj\.weight has the shape \[32, 64\], the config asks for \[32, 96\]"
    ):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{ not json", "", "{}"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelNotLoadable, match=r"the config\.json in .* is damaged or incomplete .*; copy or download"):
        load(tmp_path)


def test_words_that_name_no_folder(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    with pytest.raises(UnknownModel, match=r"model\.safetensors' is a file; give the folder that holds it"):
        load(tmp_path / "model.safetensors")
    with pytest.raises(UnknownModel, match="the name of the model is empty"):
        load("")


def test_number_types_and_devices_by_name(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    assert load(tmp_path, dtype="float64")[0].dtype == torch.float64
    with pytest.raises(ValueError, match="no dtype is named 'bf16'; there are auto, float32, bfloat16"):
        load(tmp_path, dtype="bf16")
    with pytest.raises(
        ValueError, match=r"device 'gpu' cannot be used here: torch knows no .*; write cpu, cuda"
    ) as caught:
        load(tmp_path, device="gpu")
    said(caught.value)


def test_a_hub_id_without_network() -> None:
    with pytest.raises(ModelNotFound, match="'nobody/nothing' is not on this machine and the Hub cannot be") as caught:
        load("nobody/nothing")
    assert "HF_HUB_OFFLINE" in said(caught.value) and "smollm2-135m-instruct" in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("a/b is not a local folder and is not a valid model identifier\nlisted", "neither this machine nor the Hub"),
        ("Repo id must use alphanumeric chars", "neither this machine nor the Hub has a model 'a/b': write owner/name"),
        ("You are trying to access a gated repo.\nMake sure", "accept its terms on its page, then run `hf auth login`"),
        ("There was a specific connection error when", "the Hub cannot be reached"),
    ],
)
def test_what_the_hub_says(theirs: str, ours: str) -> None:
    told = explained("a/b", OSError(theirs))
    assert isinstance(told, ModelNotFound) and ours in said(told)


def test_what_is_not_recognised_stays(tmp_path: Path) -> None:
    assert explained("a/b", OSError("something new")) is None
    save_tiny_model(tmp_path)
    assert explained(str(tmp_path), ValueError("something new")) is None


def test_weights_larger_than_the_memory(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    assert memory_warning(tmp_path, 10**9) is None
    assert "GB of memory are free; the system may end this process" in (memory_warning(tmp_path, 1000) or "")
    free = free_memory_bytes()
    assert free is None or 10**6 < free < 10**15
    assert memory_warning(tmp_path) is None, "a few kilobytes fit everywhere"


@pytest.mark.parametrize(
    ("machine", "capability", "dtype", "device", "warns"),
    [
        ("x86_64", "AVX2", torch.bfloat16, "cpu", True),
        ("x86_64", "DEFAULT", torch.bfloat16, "cpu", True),
        ("x86_64", "AVX512", torch.bfloat16, "cpu", False),
        ("x86_64", "AVX2", torch.float32, "cpu", False),
        ("x86_64", "AVX2", torch.bfloat16, "meta", False),
        ("aarch64", "DEFAULT", torch.bfloat16, "cpu", False),
    ],
)
def test_a_dtype_that_the_processor_does_not_multiply(machine, capability, dtype, device, warns, monkeypatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    says = dtype_warning(dtype, torch.device(device))
    assert (says is not None) == warns
    assert says is None or "Take --engine auto, or --dtype float32" in says


def test_a_good_folder_still_loads(tmp_path: Path) -> None:
    model, tokenizer = load(save_tiny_model(tmp_path), dtype=torch.float64)
    assert model.dtype == torch.float64 and len(tokenizer("abc").input_ids) == 3
