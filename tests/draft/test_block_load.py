"""Folders of block heads: every published layout loads, and what is damaged, unknown or another target's is named."""

from __future__ import annotations

import json

import pytest
import torch
from head_folders import (
    BLOCK_SIZE,
    DRAFT_VOCAB,
    HIDDEN,
    MASK,
    block_tensors,
    dflash_config,
    speculators_config,
    vocabulary_tensors,
    write_dflash,
    write_head,
    write_speculators,
)

from branchwise.draft.block_load import load_block_head
from branchwise.draft.head_config import HeadCheckpointError
from zoo import VOCAB, tiny_llama

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def test_dflash_and_jetspec_folders_load_every_tensor(tmp_path, model):
    for name, nested in (("dflash", {}), ("jetspec", {"causal_head": True})):
        loaded = load_block_head(write_dflash(tmp_path / name, dflash_config=nested), model)
        held = loaded.head.state_dict()
        assert held.keys() == block_tensors().keys()
        assert all(torch.equal(held[name], tensor.double()) for name, tensor in block_tensors().items())
        assert loaded.token_ids is None and not loaded.head.training
        config = loaded.head.config
        assert (config.feature_layers, config.block_size, config.mask_token_id) == ((1, 2), BLOCK_SIZE, MASK)
        assert config.causal == (name == "jetspec")
        assert not any(parameter.requires_grad for parameter in loaded.head.parameters())


def test_speculators_folders_load_with_their_own_vocabulary(tmp_path, model):
    loaded = load_block_head(write_speculators(tmp_path / "head"), model)
    assert loaded.token_ids == tuple(token for token in range(VOCAB) if token % 2 or token >= 34)
    assert loaded.head.lm_head.weight.shape == (DRAFT_VOCAB, HIDDEN)
    assert loaded.head.config.feature_layers == (1, 2)


def test_speculators_folders_with_the_targets_vocabulary_and_copies_of_its_weights_load(tmp_path, model):
    copies = {"verifier_norm.weight": torch.ones(HIDDEN), "embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}
    folder = write_speculators(tmp_path / "head", tensors=copies, draft_vocab_size=VOCAB)
    loaded = load_block_head(folder, model)
    assert loaded.token_ids is None and loaded.head.lm_head is None
    assert torch.equal(loaded.head.embed_tokens.weight, copies["embed_tokens.weight"].double())


def test_keys_at_the_top_or_under_dflash_config_are_the_same(tmp_path, model):
    config = dflash_config(target_layer_ids=[0, 1], mask_token_id=MASK, dflash_config={"block_size": BLOCK_SIZE})
    for key in ("target_layer_ids", "mask_token_id"):
        del config["dflash_config"][key]
    del config["block_size"]
    loaded = load_block_head(write_head(tmp_path / "head", config, block_tensors()), model)
    assert loaded.head.config.block_size == BLOCK_SIZE


ROPE = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": None, "rope_parameters": ROPE | {"original_max_position_embeddings": 64}},
    ],
    ids=["transformers 5", "transformers 4", "llama3"],
)
def test_rotary_positions_are_those_of_transformers(tmp_path, model, changes):
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

    head = load_block_head(write_dflash(tmp_path / "head", **changes), model).head
    config = dflash_config(**changes)
    rope = config.get("rope_parameters") or {"rope_theta": 1000.0, "rope_type": "linear", "factor": 2.0}
    rotary = Qwen3RotaryEmbedding(
        Qwen3Config(
            head_dim=8, hidden_size=32, num_attention_heads=4, max_position_embeddings=256, rope_parameters=rope
        )
    )
    positions = torch.tensor([[0, 1, 7, 100]])
    cosines, sines = rotary(torch.zeros(1), positions)
    vectors = torch.randn(1, 3, 4, 8)
    expected, _ = apply_rotary_pos_emb(vectors, vectors, cosines, sines)
    assert torch.allclose(head._rotary(positions, torch.float32)(vectors), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, r"'hidden_act' = 'gelu'; only 'silu'"),
        ({"use_sliding_window": True}, r"'use_sliding_window' = True; only False"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, r"'layer_types' = \['sliding_attention'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, r"rotary scaling 'dynamic'; there are default"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"rotary parameters \['partial_rotary_factor'\]"),
        ({"model_type": "mamba"}, r"'model_type' = 'mamba'"),
        ({"dflash_config": {"selector_rank": 8}}, r"\['dflash_config'\] sets 'selector_rank' = 8"),
        ({"dflash_config": {"projector_type": "domino"}}, r"'projector_type' = 'domino'; only 'dflash'"),
        ({"dflash_config": {"final_logit_softcapping": 20.0}}, r"'final_logit_softcapping' = 20.0"),
        ({"dflash_config": {"block_size": 9}}, r"'block_size' twice, 5 and 9"),
        ({"conv_kernel_size": 2}, r"config.json sets 'conv_kernel_size' = 2, which branchwise does not honour"),
        ({"block_size": 1}, r"block_size >= 2 .* got 1"),
        ({"block_size": "5"}, r"'block_size' = '5', which must be of type int"),
        ({"block_size": None}, r"lacks the key 'block_size'"),
        ({"num_key_value_heads": 3}, r"4 query heads do not share 3"),
        (
            {"dflash_config": {"target_layer_ids": [0, "1"]}},
            r"'target_layer_ids' = \[0, '1'\], which must be a list of int",
        ),
        ({"hidden_size": 48}, r"hidden size 48, this one has 32"),
        ({"vocab_size": 50}, r"vocabulary size 50, this one has 37"),
        ({"num_target_layers": 6}, r"number of layers 6, this one has 2"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, r"hidden state 3 of the target, which has 2 layers"),
        ({"dflash_config": {"mask_token_id": 37}}, r"mask_token_id 37, but there are embeddings of 37 tokens"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_a_dflash_config_cannot_mean_here_is_refused_by_name(tmp_path, model, changes, message):
    with pytest.raises(HeadCheckpointError, match=message):
        load_block_head(write_dflash(tmp_path / "head", **changes), model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "dspark"}, r"'speculators_model_type' = 'dspark'; only 'dflash'"),
        ({"sample_from_anchor": True}, r"'sample_from_anchor' = True; only False"),
        ({"projector_type": "domino"}, r"'projector_type' = 'domino'"),
        ({"shift_label": True}, r"'shift_label' = True"),
        ({"target_hidden_size": 64}, r"'target_hidden_size' = 64; only 32"),
        ({"markov_rank": 4}, r"sets 'markov_rank' = 4, which branchwise does not honour"),
        ({"mask_token_id": None}, r"lacks the key 'mask_token_id'"),
        ({"draft_vocab_size": 21}, r"'lm_head.weight' .* has shape \[20, 32\], its config asks for \[21, 32\]"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_a_speculators_config_cannot_mean_here_is_refused_by_name(tmp_path, model, changes, message):
    with pytest.raises(HeadCheckpointError, match=message):
        load_block_head(write_speculators(tmp_path / "head", **changes), model)


def test_a_head_of_another_target_is_refused_with_both_names(tmp_path):
    model = tiny_llama()
    folder = write_speculators(tmp_path / "head")
    model.name_or_path = "/somewhere/Tiny-Target"
    load_block_head(folder, model)
    model.name_or_path = "someone/other-target"
    with pytest.raises(HeadCheckpointError, match=r"for 'someone/tiny-target', the target is 'someone/other-target'"):
        load_block_head(folder, model)


def damaged(**changes):
    tensors = block_tensors()
    for name, tensor in changes.items():
        tensors[name.replace("__", ".")] = tensor
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (damaged(fc__weight=None), r"head/model.safetensors lacks the tensor 'fc.weight'"),
        (damaged(layers__1__mlp__up_proj__weight=None), r"lacks the tensor 'layers.1.mlp.up_proj.weight'"),
        (damaged(markov__weight=torch.ones(2)), r"no place for: 'markov.weight' \[2\]"),
        (damaged(layers__2__norm__weight=torch.ones(2)), r"no place for: 'layers.2.norm.weight'"),
        (
            damaged(fc__weight=torch.ones(32, 32)),
            r"'fc.weight' .* has shape \[32, 32\], its config asks for \[32, 64\]",
        ),
        (damaged(norm__weight=torch.full((32,), torch.nan)), r"'norm.weight' .* not finite"),
    ],
    ids=["missing", "missing in a layer", "extra", "extra layer", "shape", "nan"],
)
def test_tensors_that_do_not_fit_are_named_with_their_file(tmp_path, model, tensors, message):
    with pytest.raises(HeadCheckpointError, match=message):
        load_block_head(write_head(tmp_path / "head", dflash_config(), tensors), model)


D2T = vocabulary_tensors()["d2t"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d2t": None}, r"lacks the tensor 'd2t'"),
        ({"d2t": D2T + 20}, r"'d2t' of head does not give 20 different tokens of the target's 37"),
        ({"d2t": -torch.arange(DRAFT_VOCAB)}, r"'d2t' of head does not give 20 different tokens"),
        ({"t2d": torch.ones(VOCAB, dtype=torch.bool)}, r"'t2d' and 'd2t' of head name different tokens"),
        ({"lm_head.weight": None}, r"lacks the tensor 'lm_head.weight'"),
    ],
    ids=["no map", "outside", "twice", "maps disagree", "no output layer"],
)
def test_vocabulary_maps_that_cannot_be_are_refused(tmp_path, model, changes, message):
    tensors = {name: tensor for name, tensor in (vocabulary_tensors() | changes).items() if tensor is not None}
    with pytest.raises(HeadCheckpointError, match=message):
        load_block_head(write_speculators(tmp_path / "head", tensors=tensors), model)


def test_a_truncated_file_and_a_broken_config_are_named(tmp_path, model):
    folder = write_dflash(tmp_path / "head")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HeadCheckpointError, match=r"head/model.safetensors is damaged"):
        load_block_head(folder, model)
    (folder / "config.json").write_text(json.dumps(speculators_config())[:-5])
    with pytest.raises(HeadCheckpointError, match=r"head/config.json is damaged"):
        load_block_head(folder, model)
