"""Block heads: their trees are those of a slow rebuild, their cache follows the text, and the output never changes."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from block_oracle import best_paths, block_laws, features_by_recompute
from head_folders import BLOCK_SIZE, block_tensors, vocabulary_tensors, write_dflash, write_medusa, write_speculators
from transformers import DynamicCache

from branchwise import Speculator
from branchwise.draft import DraftContext, DrafterSource, MixedDrafter, NgramSource, RecyclingSource, make_drafter
from branchwise.draft.block import BlockDrafter
from branchwise.verify.greedy import Greedy
from branchwise.warning import BranchwiseWarning
from loop_rig import greedy_request, run_greedy, start_session
from oracles import greedy_by_recompute
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
PROMPTS = (PROMPT, [5, 6], [9], [4, 4, 4, 12, 8, 30, 2, 17, 33, 21, 1, 6])
QWEN3 = SUPPORTED[3]


@cache
def target(name: str = "llama"):
    return tiny_llama() if name == "llama" else build(QWEN3)


#: kind of head -> how to write it, its tensors, and what the oracle must know
HEADS = {
    "dflash": (write_dflash, {}, block_tensors, {}),
    "jetspec": (write_dflash, {"dflash_config": {"causal_head": True}}, block_tensors, {"causal": True}),
    "speculators": (write_speculators, {}, lambda: block_tensors() | vocabulary_tensors(), {}),
    "one layer with biases": (
        write_dflash,
        {"dflash_config": {"target_layer_ids": [1]}, "bias": True},
        lambda: block_tensors(features=1, bias=True),
        {"layers": (2,)},
    ),
}


@pytest.fixture
def make(tmp_path):
    """Writes a head of some kind, loads it for a target and makes its drafter."""

    def drafter(kind: str = "dflash", model=None, **options) -> BlockDrafter:
        write, changes, _, _ = HEADS[kind]
        return BlockDrafter.load(write(tmp_path / kind, **changes), model or target(), **options)

    return drafter


def expected_paths(kind: str, model, tokens, nodes: int, depth: int):
    _, _, tensors, facts = HEADS[kind]
    return best_paths(block_laws(tensors(), model, tokens, **facts), nodes, depth)


def drafted_paths(draft) -> dict[tuple[int, ...], float]:
    tree = draft.tree
    paths = [tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(1, len(tree))]
    return dict(zip(paths, draft.scores, strict=True))


@pytest.mark.parametrize(("kind", "name"), [*((kind, "llama") for kind in HEADS), ("dflash", "qwen3")])
def test_every_tree_of_a_run_is_that_of_a_position_by_position_rebuild(make, kind, name):
    model, new = target(name), 10
    speculator = Speculator(model, drafter=make(kind, model), budget=13)
    output = speculator.complete(PROMPT, max_new_tokens=new, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, new)
    tokens = list(PROMPT)
    for record in output.records:
        left = new - (len(tokens) - len(PROMPT))
        expected = expected_paths(kind, model, tokens, 12, min(BLOCK_SIZE - 1, left - 1))
        assert drafted_paths(record.draft) == pytest.approx(expected, rel=1e-9)
        assert set(record.draft.sources) <= {"block"}
        tokens += record.tokens


def test_a_prompt_of_one_token_is_drafted_from_without_any_context(make):
    drafter = make("dflash")
    context = DraftContext([9], VOCAB)
    (draft,) = drafter.propose([drafter.start(context)], [context], [8])
    assert drafted_paths(draft) == pytest.approx(expected_paths("dflash", target(), [9], 7, 4), rel=1e-9)


@pytest.mark.parametrize("kind", ["dflash", "jetspec"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_depth_cuts_the_tree_and_not_the_heads_view(make, kind, depth):
    """A causal block may be cut; a bidirectional one must still see all of its mask tokens."""
    drafter = make(kind, depth=depth)
    features = _features(PROMPT)
    context = DraftContext(list(PROMPT), VOCAB, features)
    (draft,) = drafter.propose([drafter.start(context)], [context], [10])
    assert draft.tree.height <= depth
    assert drafted_paths(draft) == pytest.approx(expected_paths(kind, target(), PROMPT, 9, depth), rel=1e-9)


def _features(tokens, layers=(1, 2)) -> dict[int, torch.Tensor]:
    with torch.no_grad():
        return {layer: features_by_recompute(target(), tokens[:-1], [layer]) for layer in layers}


def test_lanes_draft_as_if_alone_in_one_forward(make, monkeypatch):
    drafter, budgets, depths = make("dflash"), [12, 3, 9, 1], [None, 4, 2, None]
    contexts = [
        DraftContext(list(prompt), VOCAB, _features(prompt) if len(prompt) > 1 else {}, max_depth=depth)
        for prompt, depth in zip(PROMPTS, depths, strict=True)
    ]
    calls = []
    forward = drafter._head.forward
    monkeypatch.setattr(drafter._head, "forward", lambda *args: calls.append(args[0].shape) or forward(*args))
    together = drafter.propose([drafter.start(context) for context in contexts], contexts, budgets)
    assert calls == [(4, BLOCK_SIZE, 32)]
    for prompt, budget, depth, draft in zip(PROMPTS, budgets, depths, together, strict=True):
        expected = expected_paths("dflash", target(), prompt, budget - 1, 4 if depth is None else depth)
        assert drafted_paths(draft) == pytest.approx(expected, rel=1e-9)


def check_cache(drafter: BlockDrafter, lane, model) -> None:
    """What the drafter knows of a lane is what a rebuild from the committed tokens gives."""
    state, committed = lane.draft_state, lane.context.tokens[:-1]
    with torch.no_grad():
        features = features_by_recompute(model, committed, (1, 2))
        rebuilt = DynamicCache()
        drafter._head.remember(features[None], torch.arange(len(committed))[None], rebuilt)
    held = drafter._cache.length(state.lane)
    for index, layer in enumerate(rebuilt.layers):
        keys, values = drafter._cache.rows(state.lane, index)
        assert torch.allclose(keys, layer.keys[0, :, :held], rtol=0, atol=1e-9)
        assert torch.allclose(values, layer.values[0, :, :held], rtol=0, atol=1e-9)
    waiting = [*state.pending, *([] if lane.stop else [_side_by_side(lane.context.features)])]
    assert torch.allclose(torch.cat(waiting), features[held:], rtol=0, atol=1e-9)


def _side_by_side(features: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.cat([features[1], features[2]], dim=-1)


def test_a_lane_of_another_caller_between_ours_is_left_alone(make):
    """Two generations may share a drafter; the middle lane takes no part in the second draft."""
    drafter = make("dflash")
    contexts = [DraftContext(list(PROMPTS[i]), VOCAB, _features(PROMPTS[i])) for i in (0, 3, 1)]
    states = [drafter.start(context) for context in contexts]
    drafter.propose(states[1:2], contexts[1:2], [8])
    before = [rows.clone() for rows in drafter._cache.rows(states[1].lane, 1)]
    drafts = drafter.propose(states[::2], contexts[::2], [8, 8])
    for draft, prompt in zip(drafts, (PROMPTS[0], PROMPTS[1]), strict=True):
        expected = expected_paths("dflash", target(), prompt, 7, BLOCK_SIZE - 1)
        assert drafted_paths(draft) == pytest.approx(expected, rel=1e-9)
    after = drafter._cache.rows(states[1].lane, 1)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


class Changing:
    """A budget that is 1 (no drafts) for some steps, then large again."""

    largest = 14

    def __init__(self) -> None:
        self._steps = 0

    def choose(self, lanes: int) -> list[int]:
        self._steps += 1
        return [1 if self._steps % 5 in (2, 3) else 14] * lanes

    def learn(self, *args) -> None:
        pass


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "mixed"])
def test_the_cache_stays_in_step_with_lanes_that_join_and_leave(make, alone):
    """A long run: steps that do not draft, accepted tokens of other sources, a lane that moves to another slot."""
    model = target()
    block = make("dflash", model)
    drafter = block
    if not alone:
        drafter = MixedDrafter([NgramSource(), RecyclingSource(), DrafterSource(block)])
    session = start_session(model, drafter)
    session.budget = Changing()
    lengths = (60, 10, 25, 40)
    lanes = [session.add(greedy_request(PROMPTS[i], lengths[i]), Greedy()) for i in (0, 1, 2)]
    accepted = 0
    while session.active:
        if len(lanes) == 3 and len(session.active) < 3:
            lanes.append(session.add(greedy_request(PROMPTS[3], lengths[3]), Greedy()))
        for lane in session.step():
            accepted += len(lane.records[-1].tokens) - 1
            if alone and lane.stop is None:
                check_cache(block, lane, model)
        block._cache.check_integrity()
    assert accepted > 5
    for lane, prompt, length in zip(lanes, PROMPTS, lengths, strict=True):
        assert lane.generated == greedy_by_recompute(model, prompt, length)
    if hasattr(drafter, "finish"):  # who hands the end of a lane on
        assert block._cache.lanes == ()


@pytest.mark.parametrize("kind", ["jetspec", "speculators"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "mixed"])
def test_sampled_output_is_plain_sampling_with_the_same_seed(make, kind, alone):
    model, new = target(), 24
    block = make(kind, model)
    drafter = block if alone else MixedDrafter([NgramSource(), DrafterSource(block)])
    plain = Speculator(model, drafter="none").complete(PROMPT, max_new_tokens=new, do_sample=True, seed=4)
    output = Speculator(model, drafter=drafter, budget=14).complete(PROMPT, max_new_tokens=new, do_sample=True, seed=4)
    assert output.tokens == plain.tokens
    sources = {source for record in output.records for source in record.draft.sources}
    assert "block" in sources


def test_a_head_that_fails_mid_run_costs_one_warning_and_not_the_text(make, monkeypatch):
    model, drafter = target(), make("dflash")
    calls = []
    forward = drafter._head.forward

    def fails(*args):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of luck")
        return forward(*args)

    monkeypatch.setattr(drafter._head, "forward", fails)
    session = start_session(model, drafter)
    with pytest.warns(BranchwiseWarning, match="'block' failed .RuntimeError: out of luck"):
        outputs = run_greedy(session, [greedy_request(prompt, 15) for prompt in PROMPTS])
    assert outputs == [greedy_by_recompute(model, prompt, 15) for prompt in PROMPTS]
    assert len(calls) == 3 and drafter._cache.lanes == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["dflash", "speculators"])
def test_heads_run_in_the_targets_own_dtype(make, kind, dtype):
    model = tiny_llama(dtype=dtype)
    output = Speculator(model, drafter=make(kind, model), budget=9).complete(PROMPT, max_new_tokens=12, do_sample=False)
    assert len(output.tokens) == 12
    assert any(len(record.draft.tree) == 9 for record in output.records)


def test_features_that_were_never_given_are_missed(make):
    drafter = make("dflash")
    context = DraftContext(list(PROMPT), VOCAB)
    with pytest.raises(ValueError, match="8 tokens were committed since the last draft, but there are features of 0"):
        drafter.propose([drafter.start(context)], [context], [8])


def test_features_are_taken_once_when_a_step_is_repeated(make):
    drafter = make("dflash")
    context = DraftContext(list(PROMPT), VOCAB, _features(PROMPT))
    state = drafter.start(context)
    drafts = [drafter.propose([state], [context], [8])[0] for _ in range(2)]
    assert drafts[0].tree == drafts[1].tree


@pytest.mark.parametrize(("name", "write"), [("block", write_dflash), ("medusa", write_medusa)])
def test_heads_are_made_by_name_for_a_target(tmp_path, name, write):
    model, folder = target(), str(write(tmp_path / "head"))
    drafter = make_drafter(name, target=model, head=folder)
    output = Speculator(model, drafter=drafter, budget=9).complete(PROMPT, max_new_tokens=9, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, 9)
    with pytest.raises(ValueError, match=f"drafter '{name}' needs the folder of a trained head: head=FOLDER"):
        make_drafter(name, target=model)
    with pytest.raises(ValueError, match=f"drafter '{name}' works inside a target"):
        make_drafter(name, head=folder)


def test_the_target_is_left_alone(make):
    model = tiny_llama()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = [parameter.requires_grad for parameter in model.parameters()]
    Speculator(model, drafter=make("dflash", model), budget=9).complete(PROMPT, max_new_tokens=9, do_sample=False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert grads == [parameter.requires_grad for parameter in model.parameters()]


@pytest.mark.parametrize("depth", [0, BLOCK_SIZE])
def test_a_depth_that_the_head_cannot_draft_is_refused(make, depth):
    with pytest.raises(ValueError, match=f"drafts 1 to 4 tokens in a row, got depth {depth}"):
        make("dflash", depth=depth)


def test_the_head_can_be_trained_on_blocks_at_many_anchors_at_once(make):
    """As a trainer runs it: one text, several blocks as one row of queries; each is what it is alone."""
    drafter = make("jetspec")
    head, model = drafter._head, target()
    head.requires_grad_(True)
    anchors, width = [2, 4, 8], BLOCK_SIZE
    features = features_by_recompute(model, PROMPT, (1, 2)).detach()
    cache = DynamicCache()
    head.remember(features[None], torch.arange(9)[None], cache)
    table = model.get_input_embeddings().weight
    ids = torch.tensor([[PROMPT[anchor], *[36] * (width - 1)] for anchor in anchors]).view(1, -1)
    positions = torch.tensor([[anchor + i for anchor in anchors for i in range(width)]])
    context = torch.arange(9) < torch.tensor(anchors).repeat_interleave(width)[:, None]
    block = torch.block_diag(*[torch.ones(width, width).tril()] * 3).bool()
    hidden = head(table[ids].detach(), positions, cache, torch.cat((context, block), dim=1)[None])  # [1, 15, h]
    laws = model.get_output_embeddings()(hidden[0]).softmax(-1).view(3, width, VOCAB)[:, 1:]
    for anchor, law in zip(anchors, laws, strict=True):
        alone = block_laws(block_tensors(), model, PROMPT[: anchor + 1], causal=True)
        assert torch.allclose(law, alone, rtol=0, atol=1e-9)
    laws.square().sum().backward()
    missing = [name for name, parameter in head.named_parameters() if parameter.grad is None]
    assert not missing
