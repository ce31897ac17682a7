"""After every step the whole cache is that of the committed tokens, fed one by one to the model's own cache."""

from __future__ import annotations

import pytest
import torch

from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree
from branchwise.verify.greedy import Greedy
from cache_oracle import EAGER, OneByOne, assert_equal_caches
from drafters import Scripted
from loop_rig import WildTrees, committed_tokens, greedy_request, start_session
from oracles import greedy_by_recompute
from zoo import LENGTH_DEPENDENT, SUPPORTED, build

pytestmark = pytest.mark.core

PROMPTS = ([7, 3, 11, 3, 7, 3, 11, 19, 23], [5], [2, 30, 2, 30, 2], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3])
#: new tokens per prompt; the first is enough for a window of 6 or 7 to be trimmed, which happens at 64 rows beyond it
NEW = (76, 20, 9, 20)
#: windows in all or half of the layers, latent attention, learned positions, sinks, a mask instead of our attention
FAMILIES = [
    family
    for family in SUPPORTED
    if family.model_type in ("llama", "mistral", "gemma3_text", "phi3", "gpt2", "falcon", "deepseek_v3", "gpt_oss")
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_after_every_step_the_cache_is_that_of_the_committed_tokens(family):
    model = build(family)
    futures = {tuple(p): greedy_by_recompute(model, p, new) for p, new in zip(PROMPTS, NEW, strict=True)}
    session = start_session(model, WildTrees(futures, seed=3), budget=12)
    # the last prompt joins in the middle; outputs end at different steps, so that slots move
    lanes = [session.add(greedy_request(p, new), Greedy()) for p, new in zip(PROMPTS[:-1], NEW, strict=False)]
    rebuilt = {lane: OneByOne(model) for lane in lanes}
    tolerance = 1e-5 if family.model_type in EAGER else 1e-10
    longest_run, fewest_rows = 0, NEW[0]
    while session.active:
        for lane in session.active:
            committed = committed_tokens(lane)
            rebuilt[lane].feed_up_to(committed)
            assert_equal_caches(session.target.cache, lane.number, rebuilt[lane], len(committed), tolerance)
        session.target.cache.check_integrity()
        session.step()
        if len(lanes) < len(PROMPTS) and len(lanes[0].generated) > 12:
            lanes.append(session.add(greedy_request(PROMPTS[-1], NEW[-1]), Greedy()))
            rebuilt[lanes[-1]] = OneByOne(model)
        longest_run = max(longest_run, *(len(lane.records[-1].verdict.path) for lane in lanes if lane.records))
        if lanes[0] in session.active and len(lanes[0].generated) > 68:
            slot = session.target.cache.slot(lanes[0].number)
            fewest_rows = min(layer.kept[slot] for layer in session.target.cache.layers)
    for lane, prompt in zip(lanes, PROMPTS, strict=True):
        assert lane.generated == futures[tuple(prompt)]
    assert longest_run > 4, "no deep path was ever accepted: the test lost its point"
    if any(window is not None for window in session.target.windows):
        assert fewest_rows < 70, "no sliding layer was ever trimmed: the test lost its point"


@pytest.mark.parametrize("accepted", [(), (0,), (0, 1, 3), (0, 2, 4, 5), (0, 1, 2, 3, 4, 5)], ids=str)
def test_a_path_with_gaps_is_gathered_across_the_window_edge(accepted):
    """Window 6: trees lie before, across and behind its edge, and before and behind the trim at 5 + 64 rows."""
    model = build(next(family for family in SUPPORTED if family.model_type == "gemma3_text"))
    #  0 - 1 - 3 - 5      the rows kept need not be a path of this tree: to the cache they are rows
    #   \- 2 - 4
    tree = TokenTree((4, 8, 15, 16, 23, 36), (-1, 0, 0, 1, 2, 3))
    for length in (*range(9), *range(62, 72)):
        tokens = [(7 * i + 3) % 37 for i in range(length)]
        target = HuggingFaceTarget(model)
        lane = target.open()
        target.prefill(lane, [*tokens, tree.tokens[0]])
        before = [[rows.clone() for rows in target.cache.rows(lane, layer)] for layer in range(2)] if length else None
        target.forward({lane: tree})
        in_flight = [
            [buffer[0, :, layer.base : layer.base + 6].clone() for buffer in (layer.keys, layer.values)]
            for layer in target.cache.layers
        ]
        target.commit({lane: accepted})
        target.cache.check_integrity()
        for layer in range(2):
            for part, rows in enumerate(target.cache.rows(lane, layer)):
                everything = in_flight[layer][part][:, list(accepted)]
                if before is not None:
                    everything = torch.cat([before[layer][part], everything], dim=1)
                assert torch.equal(rows, everything[:, everything.shape[1] - rows.shape[1] :])


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_trees_deeper_than_the_window(name, window):
    """Eight right tokens at a time: a node no longer sees the root, and the deepest none of the committed rows."""
    family = next(family for family in SUPPORTED if family.model_type == name)
    model = build(family, sliding_window=window)
    prompt = PROMPTS[0]
    future = greedy_by_recompute(model, prompt, 27)
    session = start_session(model, Scripted({tuple(prompt): future}, depth=8, siblings=2), budget=25)
    lane = session.add(greedy_request(prompt, 27), Greedy())
    while session.active:
        session.step()
        session.target.cache.check_integrity()
    assert lane.generated == future
    assert [len(record.tokens) for record in lane.records] == [9, 9, 9]


@pytest.mark.parametrize("chunk", [1, 3, 6, 11, 40])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_prompt_in_chunks_leaves_the_cache_of_its_tokens_one_by_one(family, chunk):
    """Chunks below, at and above the windows of 6 and 7, the last one shorter."""
    model = build(family)
    prompt = [(5 * i + 3) % 37 for i in range(40)]
    target = HuggingFaceTarget(model, prefill_chunk=chunk)
    lane = target.open()
    target.prefill(lane, prompt)
    expected = OneByOne(model)
    expected.feed_up_to(prompt[:-1])
    tolerance = 1e-5 if family.model_type in EAGER else 1e-10
    assert_equal_caches(target.cache, lane, expected, len(prompt) - 1, tolerance)


def test_rotary_frequencies_that_start_over_leave_the_cache_of_a_fresh_prefill():
    """``longrope`` recomputes the cache at its boundary of 24; from there on rows are those of the long factors."""
    model = build(LENGTH_DEPENDENT[1])
    prompt = PROMPTS[0]
    future = greedy_by_recompute(model, prompt, 40)
    session = start_session(model, WildTrees({tuple(prompt): future}, seed=1), budget=12)
    lane = session.add(greedy_request(prompt, 40), Greedy())
    compared = 0
    while session.active:
        session.step()
        committed = committed_tokens(lane)
        if session.active and len(committed) > 24:
            fresh = HuggingFaceTarget(model)
            other = fresh.open()
            fresh.prefill(other, [*committed, 0])
            for index in range(2):
                for rows, expected in zip(
                    session.target.cache.rows(lane.number, index), fresh.cache.rows(other, index), strict=True
                ):
                    kept = min(rows.shape[1], expected.shape[1])  # windows may be trimmed at different times
                    torch.testing.assert_close(rows[:, -kept:], expected[:, -kept:], rtol=0, atol=1e-10)
            compared += 1
    assert lane.generated == future
    assert compared > 3
