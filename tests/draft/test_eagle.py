"""The EAGLE drafter: its trees are those of the oracle at every step of a run, and the output is the target's own."""

from __future__ import annotations

import pytest
import torch
from draft_steps import check_draft
from eagle_folders import LAYOUTS, eagle3, eagle3_1, friendly
from torch.nn.functional import scaled_dot_product_attention

from branchwise import BranchwiseWarning, Speculator
from branchwise.attention.grown_layout import GrownLayout
from branchwise.attention.level_layout import LevelLayout
from branchwise.draft import DrafterSource, MixedDrafter, NgramSource, StepRecord
from branchwise.draft import eagle as eagle_module
from branchwise.draft.asking import AskRule
from branchwise.draft.eagle import EagleDrafter
from branchwise.draft.protocol import DraftContext
from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree
from branchwise.tune.budget import FixedBudget
from oracles import greedy_by_recompute
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
LLAMA = tiny_llama(num_hidden_layers=6)
QWEN2 = build(SUPPORTED[2], num_hidden_layers=6)


@pytest.fixture(params=LAYOUTS)
def published(request, tmp_path):
    """A head in each layout, and its folder."""
    made = LAYOUTS[request.param]()
    return made, made.write(tmp_path)


def load(folder, model=LLAMA, **options):
    return EagleDrafter.load(folder, model, allow_pickle=True, **options)


@pytest.fixture
def folder(tmp_path):
    return eagle3().write(tmp_path)


@torch.no_grad()
def features_of(model, tokens, layers):
    """The target's hidden states of all tokens but the root, layers side by side."""
    states = model(torch.tensor([tokens[:-1]]), output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([states[layer][0] for layer in layers], 1)


def paths(draft):
    """The tree as paths and their scores; every parent comes before its children."""
    tree = draft.tree
    return {tuple(tree.tokens[n] for n in tree.path(node)[1:]): draft.scores[node - 1] for node in range(1, len(tree))}


def assert_drafts(draft, expected):
    found = paths(draft)
    assert set(found) == set(expected)
    for path, score in expected.items():
        assert found[path] == pytest.approx(score, abs=1e-12, rel=0)


# what is drafted


CASES = [*((layout, LLAMA) for layout in LAYOUTS), ("eagle1_borrowing", QWEN2), ("eagle3", QWEN2)]


def case_id(value):
    return value if isinstance(value, str) else value.config.model_type


@pytest.mark.parametrize(("layout", "model"), CASES, ids=case_id)
def test_trees_are_the_oracles_at_every_step_and_the_output_is_greedy(tmp_path, layout, model):
    """Over a run whose target disagrees often, so that rows are caught up with and dropped."""
    made = LAYOUTS[layout]()
    drafter = load(made.write(tmp_path), model, depth=3, width=3)
    output = Speculator(model, drafter=drafter, budget=9).complete(PROMPT, max_new_tokens=8, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 8)
    oracle, tokens = made.oracle_for(model), list(PROMPT)
    for record in output.records:
        left = 8 - (len(tokens) - len(PROMPT))
        features = features_of(model, tokens, drafter.head.feature_layers)
        expected = oracle.tree(tokens, features, budget=9, depth=min(3, left - 1), width=3)
        assert_drafts(record.draft, expected)
        tokens += record.tokens


LANES = [("eagle1", QWEN2), ("eagle3", LLAMA), ("speculators_qwen3", LLAMA)]


@pytest.mark.parametrize(("layout", "model"), LANES, ids=case_id)
def test_several_lanes_draft_as_the_oracle_and_are_given_back(tmp_path, layout, model):
    made = LAYOUTS[layout]()
    drafter = load(made.write(tmp_path), model, depth=3, width=2)
    ids = torch.tensor([PROMPT, [0, 0, *PROMPT[2:]], [0] * 8 + PROMPT[8:]])
    mask = (torch.arange(9) >= torch.tensor([[0], [2], [8]])).long()
    prompts = (PROMPT, PROMPT[2:], PROMPT[8:])
    output = Speculator(model, drafter=drafter, budget=6).generate(
        ids, attention_mask=mask, max_new_tokens=7, do_sample=False, return_dict_in_generate=True
    )
    oracle = made.oracle_for(model)
    for row, prompt, generation in zip(output.sequences, prompts, output.branchwise, strict=True):
        assert row[9:].tolist() == greedy_by_recompute(model, prompt, 7)
        tokens = list(prompt)
        for record in generation.records[:3]:
            if len(tokens) == 1:
                assert len(record.draft.tree) == 1  # nothing was run yet: no features, no draft
            else:
                features = features_of(model, tokens, drafter.head.feature_layers)
                left = 7 - (len(tokens) - len(prompt))
                expected = oracle.tree(tokens, features, budget=6, depth=min(3, left - 1), width=2)
                assert_drafts(record.draft, expected)
            tokens += record.tokens
    assert drafter._lanes.cache.lanes == ()
    drafter._lanes.cache.check_integrity()


@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("model", [LLAMA, QWEN2], ids=["llama", "qwen2"])
def test_sampled_output_is_plain_sampling_with_the_same_seed(tmp_path, model, seed):
    settings = {"max_new_tokens": 24, "do_sample": True, "temperature": 0.7, "seed": seed}
    plain = Speculator(model, drafter="none").complete(PROMPT, **settings)
    drafter = load(friendly().write(tmp_path), model, depth=4, width=4)
    output = Speculator(model, drafter=drafter, budget=17).complete(PROMPT, **settings)
    assert output.tokens == plain.tokens
    assert output.tokens_per_step > 1  # something was accepted, so runs of several tokens were read


class Alternately(AskRule):
    """Leaves the head out of every third step, so that features of several steps wait for it."""

    steps = 0

    def wants(self, promised, unread=0):
        self.steps += 1
        return self.steps % 3 != 0


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("model", [LLAMA, QWEN2], ids=["llama", "qwen2"])
def test_in_one_tree_with_ngrams_the_output_is_plain_decoding(tmp_path, model, sample):
    settings = {"max_new_tokens": 24, "do_sample": sample, "seed": 3}
    plain = Speculator(model, drafter="none").complete(PROMPT, **settings)
    drafter = load(friendly().write(tmp_path), model, depth=3, width=3)
    mixed = MixedDrafter([NgramSource(), DrafterSource(drafter)], ask=Alternately())
    output = Speculator(model, drafter=mixed, budget=12).complete(PROMPT, **settings)
    assert output.tokens == plain.tokens
    sources = {source for record in output.records for source in record.draft.sources}
    assert sources == {"ngram", "eagle"}
    assert drafter._lanes.cache.lanes == ()


# what it costs


def counted(drafter, monkeypatch):
    calls = []
    run = drafter.head.forward
    monkeypatch.setattr(
        drafter.head, "forward", lambda *inputs: calls.append(tuple(inputs[0].shape[:2])) or run(*inputs)
    )
    return calls


def started(drafter, prompts, model=LLAMA, **options):
    contexts = []
    for prompt in prompts:
        states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        features = {layer: states[layer][0, :-1].detach() for layer in drafter.feature_layers}
        contexts.append(DraftContext(list(prompt), VOCAB, features if len(prompt) > 1 else {}, **options))
    return [drafter.start(context) for context in contexts], contexts


def test_a_tree_of_depth_five_is_five_forwards_over_all_lanes(folder, monkeypatch):
    drafter = load(folder, depth=5, width=8)
    states, contexts = started(drafter, [PROMPT, [5, 6], [9, 9, 4]])
    calls = counted(drafter, monkeypatch)
    drafts = drafter.propose(states, contexts, [400, 400, 400])
    assert calls == [(3, 1), (3, 8), (3, 8), (3, 8), (3, 8)]
    assert {draft.tree.height for draft in drafts} == {5}
    for draft, context in zip(drafts, contexts, strict=True):
        check_draft(draft, context, 400)


def test_levels_that_cannot_reach_the_tree_are_not_run(folder, monkeypatch):
    drafter = load(folder, depth=5, width=4)
    states, contexts = started(drafter, [PROMPT, PROMPT, PROMPT], max_depth=1)
    contexts[1].max_depth, contexts[2].max_depth = 0, None
    calls = counted(drafter, monkeypatch)
    drafts = drafter.propose(states, contexts, [33, 33, 1])
    assert calls == [(1, 1)]
    assert [draft.tree.height for draft in drafts] == [1, 0, 0]
    # what waited is read when it is wanted
    contexts[1].max_depth = None
    drafts = drafter.propose(states[1:], contexts[1:], [9, 9])
    assert calls[1] == (2, 1)
    assert drafts[0].tree == drafts[1].tree and len(drafts[0].tree) == 9


def test_nodes_that_cannot_have_children_in_the_tree_are_not_run(folder, monkeypatch):
    drafter = load(folder, depth=4, width=8)
    states, contexts = started(drafter, [PROMPT])
    calls = counted(drafter, monkeypatch)
    (draft,) = drafter.propose(states, contexts, [6])
    assert sum(rows for _, rows in calls) < 1 + 3 * 8
    oracle = eagle3().oracle_for(LLAMA)
    features = features_of(LLAMA, PROMPT, drafter.head.feature_layers)
    assert_drafts(draft, oracle.tree(PROMPT, features, budget=6, depth=4, width=8))


def test_plain_steps_run_nothing_and_their_features_wait(folder, monkeypatch):
    """A budget that switches between plain decoding and trees: the trees are those of the oracle all the same."""

    class EveryThird(FixedBudget):
        steps = 0

        def choose(self, lanes):
            self.steps += 1
            return [self.largest if self.steps % 3 == 0 else 1] * lanes

    drafter = load(folder, depth=2, width=3)
    calls = counted(drafter, monkeypatch)
    output = Speculator(LLAMA, drafter=drafter, budget=EveryThird(7)).complete(
        PROMPT, max_new_tokens=12, do_sample=False
    )
    assert list(output.tokens) == greedy_by_recompute(LLAMA, PROMPT, 12)
    oracle, tokens, drafted = eagle3().oracle_for(LLAMA), list(PROMPT), 0
    for record in output.records:
        if len(record.draft.tree) > 1:
            drafted += 1
            features = features_of(LLAMA, tokens, drafter.head.feature_layers)
            left = 12 - (len(tokens) - len(PROMPT))
            assert_drafts(record.draft, oracle.tree(tokens, features, budget=7, depth=min(2, left - 1), width=3))
        tokens += record.tokens
    assert drafted >= 3
    assert len(calls) == 1 + 2 * drafted  # one for the prompt
    assert (1, 3) in calls[1:]  # three tokens committed since the last draft


def test_prompts_are_read_in_chunks(folder, monkeypatch):
    whole = load(folder, depth=2, width=3)
    (state,), (context,) = started(whole, [PROMPT])
    (expected,) = whole.propose([state], [context], [9])
    monkeypatch.setattr(eagle_module, "CHUNK", 3)
    chunked = load(folder, depth=2, width=3)
    calls = counted(chunked, monkeypatch)
    (state,), (context,) = started(chunked, [PROMPT])
    assert calls == [(1, 3), (1, 3), (1, 1)]
    (draft,) = chunked.propose([state], [context], [9])
    assert draft.tree == expected.tree and draft.scores == pytest.approx(expected.scores, abs=1e-13)


# its cache


def test_the_cache_after_steps_is_the_rebuilt_one(tmp_path):
    model = LLAMA
    folder = friendly().write(tmp_path)
    drafter = load(folder, model, depth=3, width=3)
    target = HuggingFaceTarget(model)
    lane = target.open()
    features = target.prefill(lane, PROMPT, drafter.feature_layers)
    context = DraftContext(list(PROMPT), VOCAB, dict(features))
    state = drafter.start(context)
    accepted = 0
    for _ in range(8):
        (draft,) = drafter.propose([state], [context], [12])
        output = target.forward({lane: draft.tree}, drafter.feature_layers)[lane]
        path = [0]
        while True:
            best = int(output.logits[path[-1]].argmax())
            right = [node for node in draft.tree.children(path[-1]) if draft.tree.tokens[node] == best]
            if not right:
                break
            path.append(right[0])
        accepted += len(path) - 1
        target.commit({lane: path})
        tokens = (*(draft.tree.tokens[node] for node in path[1:]), best)
        verdict = type("Verdict", (), {"path": tuple(path), "bonus": best})()
        drafter.observe([state], [StepRecord(draft, verdict, tokens, output)])
        context.features = {layer: rows[path] for layer, rows in output.features.items()}
        context.tokens.extend(tokens)
        drafter._lanes.cache.check_integrity()
    assert accepted > 0
    drafter.propose([state], [context], [12])  # so that all rows are read
    fresh = load(folder, model)
    states, contexts = started(fresh, [context.tokens], model)
    fresh.propose(states, contexts, [2])
    for found, rebuilt in zip(drafter._lanes.cache.rows(state.lane, 0), fresh._lanes.cache.rows(0, 0), strict=True):
        assert found.shape == rebuilt.shape == (2, len(context.tokens) - 1, 8)
        torch.testing.assert_close(found, rebuilt, rtol=1e-12, atol=1e-12)


def test_lanes_come_and_go_in_any_order(folder):
    drafter = load(folder, depth=3, width=3)
    prompts = [PROMPT, [5, 6], [4, 4, 4, 8], [9, 1]]
    states, contexts = started(drafter, prompts)
    drafter.finish(states[1])
    kept = [0, 2, 3]
    drafts = drafter.propose([states[i] for i in kept], [contexts[i] for i in kept], [9, 5, 2])
    for i, budget, draft in zip(kept, (9, 5, 2), drafts, strict=True):
        alone = load(folder, depth=3, width=3)
        own, context = started(alone, [prompts[i]])
        (expected,) = alone.propose(own, context, [budget])
        assert draft.tree == expected.tree
        assert draft.scores == pytest.approx(expected.scores, abs=1e-13)


def test_levels_see_what_grown_trees_see():
    r"""By hand, beside the general layout of the same nodes. Lane 1 has no node on the second level.

    lane 0      (chain)          lane 1    (chain)
                 /   \                     |
                a     b                     a
               / \    |
              c   d   e
    """
    first = LevelLayout.first([2, 1])
    second = first.next([3, 0], [[0, 0, 1], [0, 0, 0]])
    assert first.mask((4, 2), 4).int().tolist() == [
        [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1]],
        [[1, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]],
    ]
    assert second.mask((4, 2), 6).int().tolist()[0] == [
        [1, 1, 1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 1, 0],
        [1, 1, 1, 1, 0, 1, 0, 0, 1],
    ]
    assert not second.mask((4, 2), 6)[1].any()
    # the general layout needs a root to hang both nodes of the first level from, in one row more
    tree = TokenTree([0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 1, 2])
    grown = GrownLayout([tree], [[0, 1, 2]], 3)
    assert torch.equal(grown.mask((3,), 6)[0, :, 1:], second.mask((4, 2), 6)[0][:, 1:])


# where it may go wrong


def test_sure_heads_draft_parents_before_children(tmp_path):
    """Probabilities of exactly 1 tie along a path."""
    made = eagle3_1()
    made.tensors["norm.weight"].mul_(1e4)
    drafter = load(made.write(tmp_path), depth=5, width=4)
    states, contexts = started(drafter, [PROMPT])
    (draft,) = drafter.propose(states, contexts, [9])
    check_draft(draft, contexts[0], 9)
    assert draft.scores[:4] == (1.0,) * 4
    assert draft.tree.height == 5


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_trees_are_as_deep_as_budget_and_drafter_allow(folder, depth):
    drafter = load(folder, depth=depth, width=1)
    states, contexts = started(drafter, [PROMPT])
    (draft,) = drafter.propose(states, contexts, [5])
    assert draft.tree.height == min(depth, 4)
    states, contexts = started(drafter, [PROMPT], max_depth=1)
    assert drafter.propose(states, contexts, [5])[0].tree.height == 1


def test_a_width_above_the_draft_vocabulary_takes_it_whole(folder):
    drafter = load(folder, depth=2, width=100)
    states, contexts = started(drafter, [PROMPT])
    (draft,) = drafter.propose(states, contexts, [1000])
    assert len(draft.tree) == 1 + 20 + 20 * 20
    assert sum(draft.scores) == pytest.approx(2.0)  # both levels are whole laws


def test_what_a_grammar_forbids_is_not_drafted(folder):
    class EvenOnly:
        def allows(self, path, token):
            return token % 2 == len(path) % 2

    drafter = load(folder, depth=3, width=6)
    states, contexts = started(drafter, [PROMPT], grammar=EvenOnly())
    (draft,) = drafter.propose(states, contexts, [12])
    assert len(draft.tree) > 4
    assert all(draft.tree.tokens[n] % 2 == (draft.tree.depth[n] - 1) % 2 for n in range(1, len(draft.tree)))


@pytest.mark.parametrize("failing", ["start", "later"])
def test_a_head_that_raises_costs_speed_and_one_warning(folder, monkeypatch, failing):
    drafter = load(folder, depth=2, width=3)
    run, left = drafter.head.forward, [0 if failing == "start" else 6]

    def forward(*inputs):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("out of memory")
        return run(*inputs)

    monkeypatch.setattr(drafter.head, "forward", forward)
    speculator = Speculator(LLAMA, drafter=drafter, budget=7)
    if failing == "start":
        with pytest.raises(RuntimeError, match="out of memory"):
            speculator.complete(PROMPT, max_new_tokens=12, do_sample=False)
    else:
        with pytest.warns(BranchwiseWarning, match="'eagle' failed .*out of memory"):
            output = speculator.complete(PROMPT, max_new_tokens=12, do_sample=False)
        assert list(output.tokens) == greedy_by_recompute(LLAMA, PROMPT, 12)
    assert drafter._lanes.cache.lanes == ()


def test_probabilities_that_are_no_numbers_are_an_error(folder):
    drafter = load(folder)
    states, contexts = started(drafter, [PROMPT])
    with torch.no_grad():
        drafter.head.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="not numbers"):
        drafter.propose(states, contexts, [9])


def test_missing_features_are_an_error(folder):
    drafter = load(folder)
    states, contexts = started(drafter, [PROMPT])
    contexts[0].tokens.append(4)
    contexts[0].features = {}
    with pytest.raises(ValueError, match=r"1 tokens were committed .* features of layers \(2, 3\) came for 0"):
        drafter.propose(states, contexts, [9])


# training


def test_the_same_forward_runs_batches_with_gradients(published):
    """Whole sequences under a causal mask, as a trainer would: the oracle's laws, and gradients for all weights."""
    made, folder = published
    drafter = load(folder)
    head = drafter.head.requires_grad_(True)
    sequences = [PROMPT, [4, 8, 15, 16, 23, 8, 4, 1, 30]]
    features = torch.stack([features_of(LLAMA, tokens, drafter.head.feature_layers) for tokens in sequences])

    def causal(layer, query, key, value):
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    tokens = torch.tensor(sequences)[:, 1:]  # [B, L - 1]
    positions = torch.arange(8).expand(2, -1)
    hidden = head(head.embed(tokens), head.fuse(features), positions, causal)  # [B, L - 1, h]
    logp = torch.log_softmax(head.logits(hidden), -1)
    oracle = made.oracle_for(LLAMA)
    for row, sequence in enumerate(sequences):
        for at in (3, 8):
            law = oracle.law(sequence[: at + 1], features[row, :at], ())
            ids = range(VOCAB) if head.target_ids is None else head.target_ids.tolist()
            expected = [law[token] for token in ids]
            assert logp[row, at - 1].tolist() == pytest.approx(expected, abs=1e-11)
    logp[..., 0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in head.parameters())
