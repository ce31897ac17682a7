"""Counts and widths from a config alone, against the real model and the cache it really fills."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from branchwise.plan.model_config import UNREADABLE, read_shape, shape_of
from zoo import REFUSED, SUPPORTED, Family, build, build_refused, tiny_llama

pytestmark = pytest.mark.core

PLANNED = [family for family in SUPPORTED if family.model_type not in UNREADABLE]


@pytest.mark.parametrize("family", PLANNED, ids=lambda family: family.name)
def test_every_family_is_counted_as_it_is(family: Family):
    model = build(family, dtype=torch.float32)
    with torch.device("meta"):
        shape = shape_of(AutoModelForCausalLM.from_config(model.config).eval(), family.name)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    cache = DynamicCache(config=model.config)
    keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        model(torch.tensor([[3, 5, 7]]), use_cache=True, **{keyword: cache})
    assert len(cache.layers) == shape.layers
    for layer in cache.layers:
        assert (layer.keys[0, :, 0].numel(), layer.values[0, :, 0].numel()) == (
            shape.kv_heads * shape.key_width,
            shape.kv_heads * shape.value_width,
        )
    assert shape.head_parameters == model.get_output_embeddings().weight.numel()
    assert shape.mlp_width > 0


def test_a_small_llama_by_hand():
    """Two layers of width 32, 4 heads on 2 of width 8, 48 wide between, 37 words, tied or not."""
    shape = shape_of(tiny_llama(), "tiny")
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    assert shape.matrix_parameters == 2 * layer
    assert shape.vector_parameters == (2 * 2 + 1) * 32
    assert (shape.head_parameters, shape.embedding_parameters) == (37 * 32, 37 * 32)
    assert (shape.query_width, shape.kv_width, shape.mlp_width) == (32, 32, 48)
    tied = shape_of(tiny_llama(tie_word_embeddings=True), "tied")
    assert (tied.head_parameters, tied.embedding_parameters) == (37 * 32, 0)
    first = shape.first_layers(1)
    assert (first.layers, first.matrix_parameters, first.windows) == (1, layer, (None,))


def test_experts_by_hand():
    family = next(family for family in SUPPORTED if family.model_type == "mixtral")
    shape = shape_of(build(family), "experts")
    assert shape.expert_parameters == 2 * shape.experts * 3 * 32 * 48
    assert shape.experts_taken == 2
    assert shape.active_parameters == shape.matrix_parameters + 2 * 2 * 3 * 32 * 48


def test_from_a_file_a_folder_and_a_model_of_any_size(tmp_path):
    config = AutoConfig.for_model("llama", hidden_size=64, intermediate_size=96, num_hidden_layers=3, vocab_size=50)
    config.save_pretrained(tmp_path / "model")
    folder, file = read_shape(str(tmp_path / "model")), read_shape(str(tmp_path / "model" / "config.json"))
    assert (folder.name, file.name) == ("model", "config")
    assert folder.parameters == file.parameters
    huge = tmp_path / "huge.json"
    layers = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "vocab_size": 128256}
    huge.write_text(json.dumps({"model_type": "llama", **layers, **sizes}), encoding="utf-8")
    assert read_shape(str(huge)).parameters / 1e9 == pytest.approx(70.55, abs=0.01)


@pytest.mark.parametrize(
    "refused", [one for one in REFUSED if one.model_type in ("mamba", "bloom")], ids=lambda one: one.model_type
)
def test_what_the_loop_refuses_is_not_planned_for(refused):
    with pytest.raises(ValueError, match=f"cannot run '{refused.model_type}' exactly"):
        shape_of(build_refused(refused), "refused")


@pytest.mark.parametrize("kind", sorted(UNREADABLE))
def test_what_cannot_be_read_off_is_refused_by_name(kind):
    family = next(family for family in SUPPORTED if family.model_type == kind)
    with pytest.raises(ValueError, match=f"model type '{kind}' is not planned for: .*; there are cohere2, "):
        shape_of(build(family), kind)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as a config"),
        ("[]", "is no config of transformers: it has no model_type"),
        ('{"model_type": "martian"}', "knows no model type 'martian'"),
    ],
)
def test_files_that_are_no_config(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_shape(str(path))
    with pytest.raises(ValueError, match="cannot be read as a config"):
        read_shape(str(tmp_path / "none.json"))
