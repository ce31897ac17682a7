"""Opening a head's folder: every tensor and every key is accounted for, and every kind of damage is named."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from branchwise.draft.checkpoint import HeadCheckpoint, blank
from branchwise.draft.head_config import HeadCheckpointError, HeadConfig

pytestmark = pytest.mark.core

WEIGHT = torch.arange(6.0).view(2, 3)
BIAS = torch.tensor([0.5, -0.5])


def write(folder, tensors=None, config=None, file="model.safetensors"):
    (folder / "config.json").write_text(json.dumps(config or {"hidden_size": 3}))
    tensors = {"fc.weight": WEIGHT, "fc.bias": BIAS} if tensors is None else tensors
    if file.endswith(".safetensors"):
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


class Fc(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)


def load(folder, **options):
    checkpoint = HeadCheckpoint(folder, **options)
    module = checkpoint.fill(blank(Fc, torch.float64))
    checkpoint.finish()
    return module


def test_a_blank_module_is_all_nan_in_the_type_asked_for():
    module = blank(Fc, torch.bfloat16)
    assert all(parameter.isnan().all() for parameter in module.parameters())
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("file", ["model.safetensors", "another-name.safetensors", "medusa_lm_head.safetensors"])
def test_one_safetensors_file_loads_whatever_its_name(tmp_path, file):
    module = load(write(tmp_path, file=file))
    assert torch.equal(module.fc.weight, WEIGHT.double()) and torch.equal(module.fc.bias, BIAS.double())


def shards(folder, weight_map=None, second=None):
    (folder / "config.json").write_text("{}")
    save_file({"fc.weight": WEIGHT}, folder / "model-1.safetensors")
    save_file({"fc.bias": BIAS} if second is None else second, folder / "model-2.safetensors")
    weight_map = weight_map or {"fc.weight": "model-1.safetensors", "fc.bias": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_several_files_load_through_their_index(tmp_path):
    assert torch.equal(load(shards(tmp_path)).fc.bias, BIAS.double())


@pytest.mark.parametrize("file", ["pytorch_model.bin", "medusa_lm_head.pt", "head.pth"])
def test_pickles_load_on_request_only(tmp_path, file):
    write(tmp_path, file=file)
    with pytest.raises(HeadCheckpointError, match=rf"pickle \({file}\).*allow_pickle=True"):
        load(tmp_path)
    assert torch.equal(load(tmp_path, allow_pickle=True).fc.weight, WEIGHT.double())


def test_safetensors_are_preferred_to_pickles(tmp_path):
    write(tmp_path, {"fc.weight": WEIGHT * 9, "fc.bias": BIAS}, file="pytorch_model.bin")
    assert torch.equal(load(write(tmp_path)).fc.weight, WEIGHT.double())


class Bomb:
    def __reduce__(self):
        return (exec, ("raise AssertionError('the pickle ran')",))


def test_a_pickle_that_would_run_code_is_refused_unrun(tmp_path):
    write(tmp_path, file="pytorch_model.bin")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Bomb()}, protocol=2))
    with pytest.raises(HeadCheckpointError, match=r"pytorch_model.bin is damaged or holds more than tensors"):
        load(tmp_path, allow_pickle=True)


def test_a_pickle_of_something_else_is_refused(tmp_path):
    write(tmp_path, {"state": {"fc.weight": WEIGHT}}, file="pytorch_model.bin")
    with pytest.raises(HeadCheckpointError, match="must hold tensors by name"):
        load(tmp_path, allow_pickle=True)


NOT_FINITE = WEIGHT.clone()
NOT_FINITE[1, 1] = torch.nan


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc.weight": WEIGHT}, r"model.safetensors lacks the tensor 'fc.bias'"),
        ({"fc.weight": WEIGHT, "fc.bias": BIAS, "lm_head.weight": WEIGHT}, r"no place for: 'lm_head.weight' \[2, 3\]"),
        (
            {"fc.weight": WEIGHT.T.contiguous(), "fc.bias": BIAS},
            r"'fc.weight' of .*.safetensors has shape \[3, 2\]",
        ),
        ({"fc.weight": WEIGHT.long(), "fc.bias": BIAS}, r"'fc.weight' .* holds torch.int64, expected torch.float64"),
        ({"fc.weight": NOT_FINITE, "fc.bias": BIAS}, r"'fc.weight' .* not finite: the file is damaged"),
    ],
    ids=["missing", "extra", "shape", "integers", "nan"],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(tmp_path, tensors, message):
    with pytest.raises(HeadCheckpointError, match=message):
        load(write(tmp_path, tensors))


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kept", [0, 5, 60, -4])
def test_a_truncated_file_is_named(tmp_path, file, kept):
    path = write(tmp_path, file=file) / file
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(HeadCheckpointError, match=rf"{file} is damaged"):
        load(tmp_path, allow_pickle=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "holds no config.json"),
        ('{"hidden_size": ', r"config.json is damaged"),
        ("[1]", "one JSON object, got a list"),
    ],
)
def test_a_config_that_is_missing_or_damaged_is_named(tmp_path, text, message):
    write(tmp_path)
    (tmp_path / "config.json").unlink() if text is None else (tmp_path / "config.json").write_text(text)
    with pytest.raises(HeadCheckpointError, match=message):
        load(tmp_path)


def test_folders_without_weights_or_with_too_many_are_refused(tmp_path):
    with pytest.raises(HeadCheckpointError, match=r"no folder .*nowhere"):
        load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(HeadCheckpointError, match="holds no weights"):
        load(tmp_path)
    for file in ("a.safetensors", "b.safetensors"):
        save_file({"fc.weight": WEIGHT}, tmp_path / file)
    with pytest.raises(HeadCheckpointError, match=r"several files .*: a.safetensors, b.safetensors"):
        load(tmp_path)


def test_an_index_must_agree_with_its_files(tmp_path):
    with pytest.raises(HeadCheckpointError, match=r"model-2.safetensors does not hold .*: fc.bias, other"):
        load(shards(tmp_path, second={"other": BIAS}))
    for file in ("../model-1.safetensors", "gone.safetensors", 3):
        with pytest.raises(HeadCheckpointError, match=r"puts 'fc.weight' into .* which is no file beside it"):
            load(shards(tmp_path, {"fc.weight": file}))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(HeadCheckpointError, match=r"model.safetensors.index.json lacks the key 'weight_map'"):
        load(tmp_path)


# the config


def test_keys_are_read_with_their_type():
    config = HeadConfig({"hidden_size": 3, "eps": 1, "flag": True, "none": None}, "config.json")
    assert config.take("hidden_size", int) == 3 and config.take("eps", float) == 1 and config.take("flag", bool) is True
    assert config.take("absent", int, 7) == 7 and config.take("none", int, 8) == 8
    with pytest.raises(HeadCheckpointError, match=r"config.json lacks the key 'gone'"):
        config.take("gone", int)
    with pytest.raises(HeadCheckpointError, match=r"'flag' = True, which must be of type int"):
        config.take("flag", int)
    with pytest.raises(HeadCheckpointError, match=r"'hidden_size' = 3, which must be of type str or list"):
        config.take("hidden_size", (str, list))


def test_keys_that_nobody_honours_are_refused_by_name():
    harmless = {"torch_dtype": "float16", "use_cache": True, "output_attentions": False, "own": 1, "null": None}
    config = HeadConfig(harmless | {"inner": {"a": 1}, "logit_scale": 2.0}, "head/config.json")
    with pytest.raises(HeadCheckpointError, match=r"head/config.json sets 'inner' = .*, 'logit_scale' = 2.0, which"):
        config.finish(ignored={"own"})
    inner = config.nested("inner")
    assert config.take("logit_scale", float) == 2.0
    config.finish(ignored={"own"})
    with pytest.raises(HeadCheckpointError, match=r"head/config.json \['inner'\] sets 'a' = 1"):
        inner.finish()


def test_one_supported_value_is_insisted_on():
    config = HeadConfig({"act": "gelu"}, "config.json")
    config.require("bias", False, False)
    with pytest.raises(HeadCheckpointError, match=r"'act' = 'gelu'; only 'silu' is supported"):
        config.require("act", "silu", "silu")
