"""A small model as drafter: its trees are those of a slow rebuild, and its cache follows the committed tokens."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from branchwise import Speculator
from branchwise.draft.protocol import DraftContext
from branchwise.draft.small_model import SmallModelDrafter
from branchwise.draft.vocabulary import check_shared_vocabulary
from oracles import greedy_by_recompute, logits_by_recompute
from zoo import LENGTH_DEPENDENT, SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
NEW = 24


def test_output_is_plain_decoding_whatever_the_small_model_is():
    model = tiny_llama()
    expected = greedy_by_recompute(model, PROMPT, NEW)
    for small in (model, tiny_llama(seed=3), build(SUPPORTED[9], seed=5)):
        drafter = SmallModelDrafter(small, depth=4, width=3)
        output = Speculator(model, drafter=drafter, budget=10).complete(PROMPT, max_new_tokens=NEW, do_sample=False)
        assert list(output.tokens) == expected
    # drafting with the target itself: the greedy path is in the tree wherever it is among the likeliest
    perfect = Speculator(model, drafter=SmallModelDrafter(model, depth=4, width=3), budget=13)
    assert perfect.complete(PROMPT, max_new_tokens=25, do_sample=False).tokens_per_step > 3


def test_sampled_output_is_plain_sampling_with_the_same_seed():
    model = tiny_llama()
    plain = Speculator(model, drafter="none").complete(PROMPT, max_new_tokens=NEW, do_sample=True, seed=4)
    drafter = SmallModelDrafter(tiny_llama(seed=3), depth=3, width=3)
    output = Speculator(model, drafter=drafter, budget=9).complete(PROMPT, max_new_tokens=NEW, do_sample=True, seed=4)
    assert output.tokens == plain.tokens


def _rebuilt(model, tokens, budget, depth, width):
    """The dynamic tree again, path by path, with no tree and no cache: a dict of paths and their log-probabilities."""
    frontier, seen = [((), 0.0)], {}
    for _ in range(depth):
        level = []
        for path, above in frontier:
            logp = torch.log_softmax(logits_by_recompute(model, [*tokens, *path])[-1], 0)
            values, ids = logp.topk(width)
            level += [((*path, int(t)), above + float(v)) for t, v in zip(ids, values, strict=True)]
        seen.update(level)
        frontier = sorted(level, key=lambda item: -item[1])[:width]
    return dict(sorted(seen.items(), key=lambda item: -item[1])[: budget - 1])


@pytest.mark.parametrize("family", [SUPPORTED[0], SUPPORTED[1], SUPPORTED[6], SUPPORTED[12]], ids=lambda f: f.name)
def test_trees_are_those_of_a_path_by_path_rebuild_at_every_step(family):
    """Over many steps of a run whose target disagrees often, so that rows are committed, dropped and caught up with."""
    small, target = build(family, seed=1), tiny_llama()
    drafter = SmallModelDrafter(small, depth=3, width=3)
    speculator = Speculator(target, drafter=drafter, budget=9)
    output = speculator.complete(PROMPT, max_new_tokens=20, do_sample=False)
    tokens = list(PROMPT)
    for record in output.records:
        left = 20 - (len(tokens) - len(PROMPT))
        expected = _rebuilt(small, tokens, budget=9, depth=min(3, left - 1), width=3)
        tree = record.draft.tree
        paths = {tuple(tree.tokens[n] for n in tree.path(node)[1:]): node for node in range(1, len(tree))}
        assert set(paths) == set(expected)
        for path, node in paths.items():
            assert record.draft.scores[node - 1] == pytest.approx(math.exp(expected[path]), rel=1e-9)
        tokens += record.tokens


def test_a_level_is_one_forward_and_a_tree_as_many_as_it_is_deep(monkeypatch):
    drafter = SmallModelDrafter(tiny_llama(seed=3), depth=4, width=3)
    calls = []
    run = drafter._lanes.model._run
    monkeypatch.setattr(
        drafter._lanes.model, "_run", lambda *args, **kw: calls.append(args[0].shape) or run(*args, **kw)
    )
    contexts = [DraftContext(list(PROMPT), VOCAB), DraftContext([5, 6], VOCAB), DraftContext([9], VOCAB)]
    states = [drafter.start(context) for context in contexts]
    calls.clear()
    drafts = drafter.propose(states, contexts, [40, 40, 40])
    assert len(calls) == 4
    assert [shape[0] for shape in calls] == [3, 3, 3, 3]
    assert max(draft.tree.height for draft in drafts) == 4


def test_lanes_draft_as_if_alone():
    drafter = SmallModelDrafter(tiny_llama(seed=3), depth=4, width=3)
    prompts = [list(PROMPT), [5, 6], [9], [4, 4, 4]]
    budgets, depths = [12, 3, 9, 1], [None, 4, 2, None]
    contexts = [DraftContext(prompt, VOCAB, max_depth=depth) for prompt, depth in zip(prompts, depths, strict=True)]
    together = drafter.propose([drafter.start(context) for context in contexts], contexts, budgets)
    for context, budget, draft in zip(contexts, budgets, together, strict=True):
        alone = SmallModelDrafter(tiny_llama(seed=3), depth=4, width=3)
        (expected,) = alone.propose([alone.start(context)], [context], [budget])
        assert draft.tree == expected.tree


def test_batches_join_and_leave_and_every_lane_is_given_back():
    model = tiny_llama()
    drafter = SmallModelDrafter(tiny_llama(seed=3), depth=3, width=2)
    speculator = Speculator(model, drafter=drafter, budget=7)
    ids = torch.tensor([PROMPT, [0, 0, *PROMPT[2:]], [0] * 6 + PROMPT[6:]])
    mask = (torch.arange(9) >= torch.tensor([[0], [2], [6]])).long()
    output = speculator.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    for row, prompt in zip(output, (PROMPT, PROMPT[2:], PROMPT[6:]), strict=True):
        assert row[9:].tolist() == greedy_by_recompute(model, prompt, 12)
    assert drafter._lanes.model.cache.lanes == ()
    drafter._lanes.model.cache.check_integrity()


def test_a_longer_vocabulary_of_the_small_model_is_never_drafted_from():
    small = tiny_llama(seed=3, vocab_size=VOCAB + 4)
    with torch.no_grad():
        small.lm_head.weight[VOCAB:] *= 50  # it would love to say the padded ids
    output = Speculator(tiny_llama(), drafter=SmallModelDrafter(small), budget=9).complete(
        PROMPT, max_new_tokens=NEW, do_sample=False
    )
    assert list(output.tokens) == greedy_by_recompute(tiny_llama(), PROMPT, NEW)
    assert max(max(record.draft.tree.tokens) for record in output.records) < VOCAB


def test_a_shorter_vocabulary_refuses_prompts_it_cannot_read():
    drafter = SmallModelDrafter(tiny_llama(seed=3, vocab_size=20))
    with pytest.raises(ValueError, match=r"token 23 .* vocabulary of 20"):
        drafter.start(DraftContext(list(PROMPT), VOCAB))


def test_the_small_models_own_context_limits_the_depth():
    small = build(LENGTH_DEPENDENT[1], seed=2)  # longrope with its boundary at 24
    model = tiny_llama()
    drafter = SmallModelDrafter(small, depth=5, width=2)
    output = Speculator(model, drafter=drafter, budget=9).complete(PROMPT, max_new_tokens=30, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 30)


def test_tokenizers_that_disagree_are_refused_and_padding_is_not():
    def tokenizer(**vocab):
        return SimpleNamespace(get_vocab=lambda: vocab)

    check_shared_vocabulary(tokenizer(a=0, b=1), tokenizer(a=0, b=1, pad=2))
    with pytest.raises(ValueError, match=r"1 of 2 shared ids \(id 1: 'b' against 'c'\)"):
        check_shared_vocabulary(tokenizer(a=0, b=1), tokenizer(a=0, c=1))
    with pytest.raises(ValueError, match="both tokenizers or neither"):
        SmallModelDrafter(tiny_llama(), tokenizer=tokenizer(a=0))


@pytest.mark.parametrize("option", ["depth", "width"])
def test_sizes_below_one_are_refused(option):
    with pytest.raises(ValueError, match=f"{option} >= 1, got 0"):
        SmallModelDrafter(tiny_llama(), **{option: 0})
