"""EAGLE heads from disk: every published layout is read, and whatever does not fit is refused by name."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from eagle_folders import HIDDEN, LAYOUTS, eagle1, eagle3, eagle3_1, specforge, speculators, speculators_qwen3

from branchwise.draft import make_drafter
from branchwise.draft.eagle import EagleDrafter
from branchwise.draft.eagle_load import load_eagle_head
from branchwise.draft.head_config import HeadCheckpointError
from branchwise.target import HuggingFaceTarget
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

MODEL = tiny_llama(num_hidden_layers=6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads_whole(tmp_path, layout):
    head = load_eagle_head(LAYOUTS[layout]().write(tmp_path), MODEL, allow_pickle=True)
    assert not any(parameter.isnan().any() for parameter in head.parameters())
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float64}
    assert not any(parameter.requires_grad for parameter in head.parameters()) and not head.training


def test_features_come_from_the_layers_that_the_config_names_or_from_the_default(tmp_path):
    expected = {
        "eagle1": (6,),
        "eagle1_borrowing": (6,),
        "eagle3": (2, 3, 3),
        "specforge": (3, 1, 2),
        "speculators_qwen3": (1, 4),
    }
    for layout, layers in expected.items():
        folder = LAYOUTS[layout]().write(tmp_path / layout)
        assert load_eagle_head(folder, MODEL, allow_pickle=True).feature_layers == layers
    folder = eagle3().write(tmp_path / "deep")
    assert load_eagle_head(folder, tiny_llama(num_hidden_layers=30)).feature_layers == (2, 15, 27)


def test_weights_of_the_target_are_looked_at_and_left_alone(tmp_path):
    model = tiny_llama(num_hidden_layers=6)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    head = load_eagle_head(speculators_qwen3().write(tmp_path), model)
    names = set(head.state_dict())
    assert not names & {"embed_tokens.weight", "lm_head.weight"}
    assert head.embed(torch.tensor([5])).equal(model.get_input_embeddings().weight[[5]])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def damaged(published, config=None, drop=(), **tensors):
    kept = {name: tensor for name, tensor in published.tensors.items() if name not in drop}
    return replace(published, config=published.config | (config or {}), tensors=kept | tensors)


def nested(published, key, **values):
    """The config with some values of an inner object changed."""
    config = copy.deepcopy(published.config)
    inner = config
    for part in key.split("."):
        inner = inner[part]
    inner.update(values)
    return replace(published, config=config)


SMALL = torch.zeros(2, 2, dtype=torch.float64)
REFUSED = {
    "missing": (
        damaged(eagle3(), drop=["midlayer.hidden_norm.weight"]),
        r"lacks the tensor 'midlayer.hidden_norm.weight'",
    ),
    "extra": (damaged(speculators(), mask_hidden=SMALL), r"no place for: 'mask_hidden' \[2, 2\]"),
    "shape": (
        damaged(eagle3(), **{"fc.weight": SMALL}),
        r"'fc.weight' .* shape \[2, 2\], its config asks for \[32, 96\]",
    ),
    "norm before fc without its norm": (
        damaged(speculators_qwen3(), {"norm_before_fc": False}),
        r"no place for: 'input_norm.weight'",
    ),
    "bias announced": (
        damaged(eagle3(), {"attention_bias": True}),
        r"lacks the tensor 'midlayer.self_attn.q_proj.bias'",
    ),
    "no d2t": (damaged(eagle3(), drop=["d2t"]), r"lacks the tensor 'd2t'"),
    "no lm_head": (damaged(eagle3(), drop=["lm_head.weight"]), r"lacks the tensor 'lm_head.weight'.*20 of 37"),
    "d2t too far": (damaged(eagle3(), d2t=torch.full((20,), 18)), r"'d2t' .* tokens 18 .. 37 in a vocabulary of 37"),
    "d2t twice": (
        damaged(eagle3(), d2t=torch.tensor([1] + [0] * 19)),
        r"'d2t' .* two draft tokens to one target token",
    ),
    "t2d": (damaged(eagle3(), t2d=torch.zeros(VOCAB, dtype=torch.bool)), r"'d2t' and 't2d' .* different target tokens"),
    "sizes": (damaged(eagle3(), {"hidden_size": None}), r"lacks the key 'hidden_size'"),
    "model type": (damaged(eagle3(), {"model_type": "gemma2"}), r"'model_type' = 'gemma2'; layers of llama, mistral"),
    "activation": (damaged(eagle3(), {"hidden_act": "gelu"}), r"'hidden_act' = 'gelu'; only 'silu'"),
    "window": (damaged(eagle3(), {"sliding_window": 8}), r"sliding windows \('sliding_window' = 8\)"),
    "rope": (damaged(eagle3(), {"rope_scaling": {"type": "dynamic", "factor": 2.0}}), r"rotary scaling 'dynamic'"),
    "partial rope": (
        damaged(eagle3(), {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
        r"rotary parameters \['partial_rotary_factor'\], which are not honoured",
    ),
    "unknown key": (damaged(eagle3(), {"logit_scale": 0.25}), r"sets 'logit_scale' = 0.25, which branchwise does not"),
    "unknown inner key": (
        nested(speculators(), "transformer_layer_config", embedding_multiplier=12.0),
        r"\['transformer_layer_config'\] sets 'embedding_multiplier' = 12.0",
    ),
    "more rows than there are": (
        damaged(eagle3_1(), {"deep_draft_vocab_size": 9999}),
        r"'deep_draft_vocab_size' = 9999, which must be a part of",
    ),
    "two norms": (damaged(eagle3_1(), {"norm_before_fc": True}), r"both 'norm_before_fc' and 'fc_norm'"),
    "other algorithm": (damaged(speculators(), {"speculators_model_type": "peagle"}), r"'peagle'; only 'eagle3'"),
    "lossy": (
        nested(
            speculators(), "speculators_config", proposal_methods=[{"proposal_type": "greedy", "verifier_accept_k": 3}]
        ),
        r"'verifier_accept_k' = 3; only 1 is supported",
    ),
    "layer": (
        nested(specforge(), "eagle_config", eagle_aux_hidden_state_layer_ids=[0, 1, 6]),
        r"input of layer 6; the target has the layers 0 .. 5",
    ),
    "no features": (nested(specforge(), "eagle_config", use_aux_hidden_state=False), r"'use_aux_hidden_state' = False"),
    "hidden size": (damaged(eagle3(), {"target_hidden_size": 48}), r"hidden size 48, this one has 32"),
    "vocabulary": (damaged(eagle3(), {"vocab_size": 41}), r"vocabulary size 41, this one has 37"),
    "class": (
        nested(speculators(), "speculators_config.verifier", architectures=["MistralForCausalLM"]),
        r"trained for a MistralForCausalLM, the target is a LlamaForCausalLM",
    ),
    "width": (
        damaged(specforge(), drop=["embed_tokens.weight"]),
        r"no embeddings of its own .* \[37, 32\], not \[37, 24\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path, case):
    published, message = REFUSED[case]
    with pytest.raises(HeadCheckpointError, match=message):
        load_eagle_head(published.write(tmp_path), MODEL, allow_pickle=True)


def test_a_head_for_a_model_of_another_name_is_refused_with_both(tmp_path, monkeypatch):
    folder = speculators().write(tmp_path)
    monkeypatch.setattr(MODEL.config, "_name_or_path", "owner/other")
    monkeypatch.setattr(MODEL, "name_or_path", "owner/other")
    with pytest.raises(HeadCheckpointError, match=r"trained for 'owner/tiny', the target is 'owner/other'"):
        load_eagle_head(folder, MODEL)
    monkeypatch.setattr(MODEL, "name_or_path", "elsewhere/tiny")
    load_eagle_head(folder, MODEL)


def test_the_default_layers_need_a_target_that_has_them(tmp_path):
    with pytest.raises(HeadCheckpointError, match=r"needs n >= 3 layers, not 2"):
        load_eagle_head(eagle3().write(tmp_path), tiny_llama())


def test_a_whole_vocabulary_may_come_with_its_maps(tmp_path):
    maps = {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB, dtype=torch.bool)}
    head = load_eagle_head(damaged(speculators_qwen3(), **maps).write(tmp_path / "both"), MODEL)
    assert head.target_ids.tolist() == list(range(VOCAB))
    del maps["d2t"]
    assert load_eagle_head(damaged(speculators_qwen3(), **maps).write(tmp_path / "t2d"), MODEL).target_ids is None


def test_absent_norm_before_residual_means_true_for_speculators_only(tmp_path):
    published = speculators()
    published.config.pop("norm_before_residual")
    assert load_eagle_head(published.write(tmp_path / "s"), MODEL).config.norm_before_residual
    assert not load_eagle_head(eagle3().write(tmp_path / "e"), MODEL).config.norm_before_residual


def test_eagle_by_name(tmp_path):
    folder = eagle3().write(tmp_path)
    for target in (MODEL, HuggingFaceTarget(MODEL)):
        drafter = make_drafter("eagle", target=target, head=folder, depth=3)
        assert isinstance(drafter, EagleDrafter) and drafter.depth == 3
    with pytest.raises(ValueError, match="give make_drafter the target"):
        make_drafter("eagle", head=folder)
    with pytest.raises(ValueError, match="needs the folder of a trained head"):
        make_drafter("eagle", target=MODEL)
    with pytest.raises(ValueError, match="needs a transformers model"):
        make_drafter("eagle", target=object(), head=folder)


@pytest.mark.parametrize("option", ["depth", "width"])
def test_sizes_below_one_are_refused(tmp_path, option):
    with pytest.raises(ValueError, match=f"{option} >= 1, got 0"):
        EagleDrafter.load(eagle3().write(tmp_path), MODEL, **{option: 0})


def test_a_biased_output_layer_is_borrowed_with_its_bias(tmp_path):
    model = build(SUPPORTED[0], num_hidden_layers=6)
    model.lm_head = torch.nn.Linear(HIDDEN, VOCAB, dtype=torch.float64)
    head = load_eagle_head(eagle1().write(tmp_path), model, allow_pickle=True)
    hidden = torch.randn(3, HIDDEN, dtype=torch.float64)
    assert torch.equal(head.logits(hidden), model.lm_head(hidden))
