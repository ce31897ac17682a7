"""Many prompts in one forward: each row is what it is alone, whatever it is batched with and however it is padded."""

from __future__ import annotations

import random

import pytest
import torch

from branchwise import Speculator, UnsupportedModel
from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree
from branchwise.verify.greedy import Greedy
from loop_rig import WildTrees, finish, greedy_request, run_greedy, start_session
from oracles import greedy_by_recompute
from zoo import LENGTH_DEPENDENT, SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPTS = ([5], [7, 3, 11], [7, 3, 11, 3, 7, 3, 11, 19, 23], [9, 8, 7, 6, 5, 4, 3, 2, 1])
#: drafted nodes: none, one, five and twelve
SIZES = (1, 2, 6, 13)
NEW = 16
FAMILIES = [
    family
    for family in SUPPORTED
    if family.model_type in ("llama", "mistral", "gemma3_text", "falcon", "gpt2", "deepseek_v3")
]


def random_tree(root: int, nodes: int, seed: int) -> TokenTree:
    shape = random.Random(seed)
    parents = [-1, *(shape.randrange(node) for node in range(1, nodes))]
    return TokenTree([root, *(shape.randrange(VOCAB) for _ in range(1, nodes))], parents)


def left_padded(prompts, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


@pytest.mark.parametrize("family", SUPPORTED, ids=lambda family: family.name)
def test_ragged_trees_in_one_forward_get_the_logits_of_each_row_alone(family):
    model = build(family)
    trees = [
        random_tree(prompt[-1], size, seed) for seed, (prompt, size) in enumerate(zip(PROMPTS, SIZES, strict=True))
    ]
    together = HuggingFaceTarget(model)
    lanes = [together.open() for _ in PROMPTS]
    for lane, prompt in zip(lanes, PROMPTS, strict=True):
        together.prefill(lane, prompt)
    outputs = together.forward(dict(zip(lanes, trees, strict=True)))
    for lane, prompt, tree in zip(lanes, PROMPTS, trees, strict=True):
        alone = HuggingFaceTarget(model)
        only = alone.open()
        alone.prefill(only, prompt)
        expected = alone.forward({only: tree})[only].logits
        assert outputs[lane].logits.shape == expected.shape == (len(tree), VOCAB)
        torch.testing.assert_close(outputs[lane].logits, expected, rtol=0, atol=family.tolerance)


def test_a_lane_that_sits_out_a_forward_is_not_disturbed():
    """Lanes 0 and 2 step while lane 1, between them, only rides along."""
    model = tiny_llama()
    target = HuggingFaceTarget(model)
    lanes = [target.open() for _ in range(3)]
    for lane, prompt in zip(lanes, PROMPTS[1:], strict=True):
        target.prefill(lane, prompt)
    before = [[rows.clone() for rows in target.cache.rows(lanes[1], layer)] for layer in range(2)]
    trees = {lane: random_tree(prompt[-1], 6, seed=lane) for lane, prompt in zip(lanes, PROMPTS[1:], strict=True)}
    target.forward({lanes[0]: trees[lanes[0]], lanes[2]: trees[lanes[2]]})
    target.commit({lanes[0]: (0,), lanes[2]: (0,)})
    for layer in range(2):
        for rows, same in zip(target.cache.rows(lanes[1], layer), before[layer], strict=True):
            assert torch.equal(rows, same)
    alone = HuggingFaceTarget(model)
    only = alone.open()
    alone.prefill(only, PROMPTS[2])
    expected = alone.forward({only: trees[lanes[1]]})[only].logits
    logits = target.forward({lanes[1]: trees[lanes[1]]})[lanes[1]].logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_rows_of_different_lengths_that_end_at_different_steps(family):
    model = build(family)
    lengths = [NEW - 5 * i for i in range(len(PROMPTS))]
    futures = {tuple(p): greedy_by_recompute(model, p, n) for p, n in zip(PROMPTS, lengths, strict=True)}
    session = start_session(model, WildTrees(futures, seed=8))
    outputs = run_greedy(session, [greedy_request(p, n) for p, n in zip(PROMPTS, lengths, strict=True)])
    assert outputs == [futures[tuple(prompt)] for prompt in PROMPTS]
    assert session.target.cache.lanes == ()


def test_lanes_that_join_late_and_while_others_leave():
    model = tiny_llama()
    prompts = [[1 + (3 * i + j) % 30 for j in range(1 + (5 * i) % 8)] for i in range(9)]
    lengths = [3 + (7 * i) % 11 for i in range(9)]
    futures = {tuple(p): greedy_by_recompute(model, p, n) for p, n in zip(prompts, lengths, strict=True)}
    session = start_session(model, WildTrees(futures, seed=2), budget=9)
    waiting = [greedy_request(p, n) for p, n in zip(prompts, lengths, strict=True)]
    lanes, sizes = [], set()
    while waiting or session.active:
        while waiting and len(session.active) < 3:
            lanes.append(session.add(waiting.pop(0), Greedy()))
        session.step()
        sizes.add(len(session.active))
        session.target.cache.check_integrity()
    assert [lane.generated for lane in lanes] == [futures[tuple(prompt)] for prompt in prompts]
    assert sizes == {0, 1, 2, 3}


def test_a_step_without_lanes_is_no_step():
    session = start_session(tiny_llama(), WildTrees({}))
    assert session.step() == []


def test_two_sessions_on_one_target_do_not_disturb_each_other():
    model = tiny_llama()
    futures = {tuple(p): greedy_by_recompute(model, p, NEW) for p in PROMPTS}
    first = start_session(model, WildTrees(futures, seed=4))
    second = type(first)(first.target, WildTrees(futures, seed=5), first.budget)
    lanes = []
    for prompt in PROMPTS:
        lanes += [session.add(greedy_request(prompt, NEW), Greedy()) for session in (first, second)]
    order = random.Random(0)
    while first.active and second.active:
        order.choice((first, second)).step()
    first.close()  # one may end early
    finish(second)
    for lane in lanes:
        expected = futures[lane.request.prompt]
        assert lane.generated == expected[: len(lane.generated)]
    assert all(lane.generated == futures[lane.request.prompt] for lane in lanes[1::2])
    assert first.target.cache.lanes == ()


@pytest.mark.parametrize("family", LENGTH_DEPENDENT, ids=lambda family: family.name)
@pytest.mark.parametrize("order", ["short first", "long first"])
def test_no_lane_joins_another_whose_rotary_frequencies_would_change(family, order):
    """Past 24 positions the frequencies of the whole batch would change with the longest row."""
    target = HuggingFaceTarget(build(family))
    reach = (20, 40) if order == "short first" else (40, 20)
    first = target.open(longest=reach[0])
    with pytest.raises(UnsupportedModel, match="one at a time"):
        target.open(longest=reach[1])
    assert target.cache.lanes == (first,)
    target.free(first)
    target.free(target.open(longest=reach[1]))
    both = [target.open(longest=20), target.open(longest=24)]
    assert target.cache.lanes == tuple(both)


# through the public face


@pytest.mark.parametrize("pad", [0, 7, 36], ids=lambda pad: f"pad{pad}")
@pytest.mark.parametrize("drafter", ["mixed", "none"])
def test_a_left_padded_batch_is_laid_out_as_transformers_does(pad, drafter):
    """Token 7 is a real token of the prompts, too."""
    model = tiny_llama(seed=2)
    ids, mask = left_padded(PROMPTS, pad)
    free = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=pad)
    # a stop token that ends the rows at different lengths, some not at all
    counts = [[row[-NEW:].tolist().index(t) for row in free if t in row[-NEW:]] for t in range(VOCAB)]
    eos = max(range(VOCAB), key=lambda token: (len(set(counts[token])), -token) if token != pad else (-1, 0))
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": pad, "eos_token_id": eos}
    expected = model.generate(ids, attention_mask=mask, **options)
    output = Speculator(model, drafter=drafter, budget=9).generate(ids, attention_mask=mask, **options)
    assert torch.equal(output, expected)
    ends = [row[-expected.shape[1] + ids.shape[1] :].tolist() for row in expected]
    assert len({row.index(eos) if eos in row else -1 for row in ends}) > 1, "all rows ended together"


def test_batches_without_a_pad_token_that_all_run_to_the_end():
    model = tiny_llama()
    model.generation_config.pad_token_id = None
    ids = torch.tensor([PROMPTS[2], PROMPTS[3]])
    expected = model.generate(ids, max_new_tokens=5, do_sample=False)
    assert torch.equal(Speculator(model, budget=5).generate(ids, max_new_tokens=5, do_sample=False), expected)


@pytest.mark.parametrize("where", ["generation_config", "keyword", "model"])
def test_the_mask_is_guessed_from_the_pad_token_as_transformers_does(where):
    from transformers import GenerationConfig

    model = tiny_llama(seed=2)
    model.generation_config.pad_token_id = 30 if where == "model" else None
    ids, _ = left_padded(PROMPTS, 30)
    options = {"max_new_tokens": 6, "do_sample": False}
    if where == "keyword":
        options["pad_token_id"] = 30
    elif where == "generation_config":
        options = {"generation_config": GenerationConfig(pad_token_id=30, **options)}
    expected = model.generate(ids, **options)
    assert torch.equal(Speculator(model, budget=5).generate(ids, **options), expected)


def test_a_users_generation_config_without_a_pad_token_falls_back_to_the_models():
    from transformers import GenerationConfig

    model = tiny_llama(seed=2)
    model.generation_config.pad_token_id = 30
    ids, _ = left_padded(PROMPTS, 30)
    config = GenerationConfig(max_new_tokens=6, do_sample=False)
    expected = model.generate(ids, generation_config=config)
    assert torch.equal(Speculator(model, budget=5).generate(ids, generation_config=config), expected)


def test_a_pad_token_that_is_also_a_stop_token_hides_nothing():
    model = tiny_llama(seed=2)
    ids = torch.tensor([[7, 3, 30, 3], [30, 9, 30, 2]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 30, "eos_token_id": [30, 36]}
    expected = model.generate(ids, **options)
    assert torch.equal(Speculator(model, budget=5).generate(ids, **options), expected)


def test_right_padding_and_holes_leave_each_prompt_what_it_is_alone():
    """transformers writes after the padding and warns; here the padding is simply not part of the prompt."""
    model = tiny_llama()
    ids = torch.tensor([[7, 3, 11, 30, 30, 30], [5, 30, 9, 30, 30, 2], [1, 2, 3, 4, 5, 6]])
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1]])
    output = Speculator(model, budget=9).generate(
        ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=30
    )
    assert torch.equal(output[:, :6], ids), "the rows come back as they were given"
    for row, prompt in zip(output, ([7, 3, 11], [5, 9, 2], [1, 2, 3, 4, 5, 6]), strict=True):
        assert row[6:].tolist() == greedy_by_recompute(model, prompt, NEW)


def test_a_right_padded_batch_of_one_is_the_prompt_without_its_padding():
    model = tiny_llama()
    output = Speculator(model, budget=9).generate(
        torch.tensor([[7, 3, 11, 30, 30]]),
        attention_mask=torch.tensor([[1, 1, 1, 0, 0]]),
        max_new_tokens=4,
        do_sample=False,
    )
    assert output[0, 5:].tolist() == greedy_by_recompute(model, [7, 3, 11], 4)


@pytest.mark.parametrize("seed", [0, 1])
def test_several_sequences_per_prompt_are_rows_in_transformers_order(seed):
    """Row r of prompt p is what return index r gives when p is alone; row order is prompt by prompt."""
    model = tiny_llama()
    speculator = Speculator(model, budget=9)
    ids, mask = left_padded(PROMPTS[1:3], 0)
    options = {"max_new_tokens": 8, "do_sample": True, "seed": seed, "num_return_sequences": 3}
    output = speculator.generate(ids, attention_mask=mask, **options)
    assert output.shape == (6, 9 + 8)
    assert torch.equal(output[:, :9], ids.repeat_interleave(3, dim=0))
    for row, prompt in enumerate(PROMPTS[1:3]):
        alone = speculator.generate(torch.tensor([prompt]), **options)
        assert torch.equal(output[3 * row : 3 * row + 3, 9:], alone[:, len(prompt) :])
        assert len({tuple(sequence.tolist()) for sequence in alone}) == 3, "return indices draw different coins"


def test_statistics_come_per_row():
    model = tiny_llama()
    ids, mask = left_padded(PROMPTS, 0)
    output = Speculator(model, budget=9).generate(
        ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
    )
    assert len(output.branchwise) == len(PROMPTS)
    for generation, prompt, row in zip(output.branchwise, PROMPTS, output.sequences, strict=True):
        assert generation.prompt_tokens == len(prompt)
        assert list(generation.tokens) == row[9:].tolist() == greedy_by_recompute(model, prompt, NEW)
        assert sum(len(record.tokens) for record in generation.records) == NEW
        assert generation.steps == len(generation.seconds) <= NEW
        assert generation.accepted_drafts == NEW - generation.steps


def test_ragged_trees_cost_by_their_nodes_and_not_by_the_largest():
    """Four trees of 1, 2, 6 and 13 nodes are 22 tokens for the model, not four times thirteen."""
    model = tiny_llama()
    target = HuggingFaceTarget(model)
    lanes = [target.open() for _ in PROMPTS]
    for lane, prompt in zip(lanes, PROMPTS, strict=True):
        target.prefill(lane, prompt)
    trees = [random_tree(prompt[-1], size, seed=size) for prompt, size in zip(PROMPTS, SIZES, strict=True)]
    seen = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape))
    target.forward(dict(zip(lanes, trees, strict=True)))
    hook.remove()
    assert seen == [(1, sum(SIZES))]


def test_trees_that_grow_after_a_ragged_forward_get_the_logits_of_each_row_alone():
    """The first forward goes packed through the model, what the trees grow by does not."""
    model = tiny_llama()
    first = [random_tree(prompt[-1], size, seed=size) for prompt, size in zip(PROMPTS, SIZES, strict=True)]
    grown = [TokenTree((*tree.tokens, 5, 9), (*tree.parents, 0, len(tree))) for tree in first]
    together = HuggingFaceTarget(model)
    lanes = [together.open() for _ in PROMPTS]
    for lane, prompt in zip(lanes, PROMPTS, strict=True):
        together.prefill(lane, prompt)
    together.forward(dict(zip(lanes, first, strict=True)))
    outputs = together.extend(dict(zip(lanes, grown, strict=True)))
    for lane, prompt, tree in zip(lanes, PROMPTS, grown, strict=True):
        alone = HuggingFaceTarget(model)
        only = alone.open()
        alone.prefill(only, prompt)
        expected = alone.forward({only: tree})[only].logits[-2:]
        torch.testing.assert_close(outputs[lane].logits, expected, rtol=0, atol=1e-10)
    together.commit({lane: tree.path(len(tree) - 1) for lane, tree in zip(lanes, grown, strict=True)})
    together.cache.check_integrity()
