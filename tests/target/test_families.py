"""Every supported family, in float64: the tree path gives the target's own tokens and logits."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from branchwise import Speculator, UnsupportedModel
from branchwise.target import TESTED_MODEL_TYPES, HuggingFaceTarget
from branchwise.tree import TokenTree
from drafters import RandomTrees, Scripted
from oracles import greedy_by_recompute, logits_by_recompute
from zoo import LENGTH_DEPENDENT, REFUSED, SUPPORTED, VOCAB, build, build_refused

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
NEW = 24
#     0
#    / \
#   1   3        a topological order that is not breadth-first, with a repeated token
#   |   |\
#   2   4 6
#       |
#       5
TREE = TokenTree((23, 5, 6, 9, 5, 0, 8), (-1, 0, 1, 0, 3, 4, 3))

by_name = pytest.mark.parametrize("family", SUPPORTED, ids=lambda family: family.name)


def test_the_zoo_is_the_documented_list():
    assert {family.model_type for family in SUPPORTED} == TESTED_MODEL_TYPES


@by_name
def test_greedy_tokens_equal_plain_decoding_without_a_cache(family):
    model = build(family)
    expected = greedy_by_recompute(model, PROMPT, NEW)
    for drafter in (RandomTrees(), Scripted({tuple(PROMPT): expected}), "mixed", "none"):
        output = Speculator(model, drafter=drafter, budget=12).complete(PROMPT, max_new_tokens=NEW, do_sample=False)
        assert list(output.tokens) == expected
    scripted = Speculator(model, drafter=Scripted({tuple(PROMPT): expected}), budget=13)
    assert scripted.complete(PROMPT, max_new_tokens=NEW, do_sample=False).tokens_per_step > 4


@by_name
def test_greedy_tokens_equal_transformers_generate(family):
    model = build(family, seed=1)
    ids = torch.tensor([PROMPT])
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(Speculator(model, budget=9).generate(ids, max_new_tokens=NEW, do_sample=False), expected)


@by_name
def test_every_node_has_the_logits_of_its_path_run_alone(family):
    model = build(family)
    tree_target = HuggingFaceTarget(model)
    reference = HuggingFaceTarget(model, attention="reference")
    lane = tree_target.open()
    tree_target.prefill(lane, PROMPT)
    logits = tree_target.forward({lane: TREE})[lane].logits
    for node in range(len(TREE)):
        path = [TREE.tokens[i] for i in TREE.path(node)]
        alone = reference.open()
        reference.prefill(alone, PROMPT)
        chain = reference.forward({alone: TokenTree.from_chain(path[0], path[1:])})[alone].logits
        reference.rollback()
        reference.free(alone)
        torch.testing.assert_close(logits[node], chain[-1], rtol=0, atol=family.tolerance)
        # the model's own attention: some families compute its softmax in float32
        own = logits_by_recompute(model, [*PROMPT, *path[1:]])[-1]
        torch.testing.assert_close(logits[node], own, rtol=1e-5, atol=2e-5)


@by_name
def test_siblings_do_not_see_each_other(family):
    target = HuggingFaceTarget(build(family))
    lane = target.open()
    target.prefill(lane, PROMPT)
    before = target.forward({lane: TREE})[lane].logits
    target.rollback()
    changed = TokenTree((23, 30, 31, 9, 5, 0, 29), TREE.parents)  # nodes 1, 2 and 6 carry other tokens
    after = target.forward({lane: changed})[lane].logits
    for node in (0, 3, 4, 5):
        torch.testing.assert_close(after[node], before[node], rtol=0, atol=family.tolerance / 100)
    assert not torch.allclose(after[2], before[2])


@by_name
def test_the_model_is_left_as_found(family):
    model = build(family)
    config = copy.deepcopy(model.config.to_dict())
    generation_config = copy.deepcopy(model.generation_config.to_dict())
    attention = model.config._attn_implementation
    state = {name: tensor.clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]

    Speculator(model, budget=9).complete(PROMPT, max_new_tokens=8, do_sample=False)
    with pytest.raises(KeyboardInterrupt):
        _interrupted(model)

    assert model.config.to_dict() == config
    assert model.generation_config.to_dict() == generation_config
    assert model.config._attn_implementation == attention
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert torch.equal(tensor, state[name]), name


def _interrupted(model):
    """Ctrl-C in the middle of a tree's forward."""
    target = HuggingFaceTarget(model)
    lane = target.open()
    target.prefill(lane, PROMPT)
    last = [module for module in model.modules() if hasattr(module, "layer_idx")][-1]

    def interrupt(*args):
        raise KeyboardInterrupt

    handle = last.register_forward_pre_hook(interrupt)
    try:
        target.forward({lane: TREE})
    finally:
        handle.remove()
        target.cache.check_integrity()
        target.free(lane)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: f"{refused.model_type}-{refused.reason}")
def test_families_that_cannot_be_exact_are_refused_by_name(refused):
    model = build_refused(refused)
    with pytest.raises(UnsupportedModel, match=f"(?s){refused.model_type}.*{refused.reason}"):
        Speculator(model)


def test_a_model_in_training_mode_is_refused_with_the_remedy():
    with pytest.raises(UnsupportedModel, match=r"model\.eval\(\)"):
        Speculator(build(SUPPORTED[0]).train())


@pytest.mark.parametrize("family", LENGTH_DEPENDENT, ids=lambda family: family.name)
@pytest.mark.parametrize("prompt_tokens", [9, 23, 24, 25, 31])
def test_rotary_embeddings_that_depend_on_the_length(family, prompt_tokens):
    """The boundary is at 24 positions: prompts before, at and after it, outputs that cross it."""
    model = build(family)
    prompt = [1 + (5 * i + 3) % (VOCAB - 1) for i in range(prompt_tokens)]
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    if family.variant == "longrope":
        # the rule is "recompute everything at the boundary"; generate of transformers 5.10 forgets the context there
        expected = greedy_by_recompute(model, prompt, NEW)
    else:
        output = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)
        expected = output[0, prompt_tokens:].tolist()
    # transformers leaves the frequencies of the last length behind; start from a fresh model
    model = build(family)
    for drafter in (Scripted({tuple(prompt): expected}), RandomTrees(), "mixed"):
        output = Speculator(model, drafter=drafter, budget=12).complete(prompt, max_new_tokens=NEW, do_sample=False)
        assert list(output.tokens) == expected
        for name, tensor in model.named_buffers():
            assert torch.equal(tensor, buffers[name]), name


def test_prompts_that_would_disturb_each_others_rotary_frequencies_are_refused():
    target = HuggingFaceTarget(build(LENGTH_DEPENDENT[1]))
    target.open(longest=20)
    target.open(longest=20)
    with pytest.raises(UnsupportedModel, match="one at a time"):
        target.open(longest=40)


def test_a_family_outside_the_tested_list_is_probed():
    """A Llama under another name passes; one whose attention leaks between siblings does not."""
    model = build(SUPPORTED[0])
    model.config.model_type = "stranger"
    assert HuggingFaceTarget(model).cache.lanes == ()


@pytest.mark.parametrize("layers", [1, 2])
def test_a_stranger_whose_tokens_see_later_ones_is_refused(layers):
    """An encoder that transformers loads as a causal model; with one layer its last logits alone do not tell."""
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match=r"bert.*depend on later tokens"):
        HuggingFaceTarget(BertLMHeadModel(config).double().eval())


def test_a_stranger_whose_nodes_see_their_siblings_is_refused(monkeypatch):
    model = build(SUPPORTED[0])
    model.config.model_type = "stranger"
    attention = model.model.layers[1].self_attn
    own = type(attention).forward

    def leaking(self, hidden_states, *args, **kwargs):
        return own(self, hidden_states + hidden_states.mean(1, keepdim=True), *args, **kwargs)

    monkeypatch.setattr(type(attention), "forward", leaking)
    with pytest.raises(UnsupportedModel, match=r"stranger.*sibling"):
        HuggingFaceTarget(model)
