"""Forgetting the end of a lane: what stays is the cache of the shorter text, or nothing where a window has moved on."""

from __future__ import annotations

import pytest
import torch

from branchwise.target import HuggingFaceTarget
from branchwise.tree import TokenTree
from oracles import logits_by_recompute
from zoo import LENGTH_DEPENDENT, SUPPORTED, build, tiny_llama

pytestmark = pytest.mark.core

TOKENS = [(7 * i + 3) % 37 for i in range(120)]
FAMILIES = [SUPPORTED[0], SUPPORTED[1], SUPPORTED[6], SUPPORTED[9]]


def grown(target, lane, tokens):
    """Commits tokens one by one, so that windows are trimmed as they are while generating."""
    for token in tokens:
        target.forward({lane: TokenTree.from_chain(token)})
        target.commit({lane: [0]})


@pytest.mark.parametrize("length", [0, 1, 50, 95, 99])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_next_forward_is_that_of_the_shorter_text(family, length):
    model = build(family, seed=1)
    target = HuggingFaceTarget(model)
    other, lane = target.open(), target.open()
    target.prefill(other, TOKENS[:11])
    grown(target, lane, TOKENS[:99])
    target.shorten(lane, length)
    target.cache.check_integrity()
    kept = target.length(lane)
    assert kept in (0, length)
    if family.model_type in ("llama", "gpt2"):
        assert kept == length
    chain = [*TOKENS[kept:length], 5, 6]  # what was cleared beyond the wish is fed again
    rows = target.forward({lane: TokenTree.from_chain(chain[0], chain[1:])})[lane].logits
    expected = logits_by_recompute(model, [*TOKENS[:length], 5, 6])[-2:]
    torch.testing.assert_close(rows[-2:], expected, rtol=1e-6, atol=1e-6)
    target.rollback()
    assert target.length(other) == 10, "the other lane is left alone"


def test_a_window_that_has_moved_on_clears_the_lane():
    target = HuggingFaceTarget(build(SUPPORTED[1], seed=1))
    lane = target.open()
    grown(target, lane, TOKENS[:75])  # trimmed at 70 committed rows, to 5
    target.shorten(lane, 74)
    assert target.length(lane) == 74
    target.shorten(lane, 60)
    assert target.length(lane) == 0


def test_past_a_rotary_boundary_everything_is_forgotten():
    target = HuggingFaceTarget(build(LENGTH_DEPENDENT[1], seed=2))  # longrope with its boundary at 24
    lane = target.open()
    target.prefill(lane, TOKENS[:30])
    target.shorten(lane, 20)
    assert target.length(lane) == 0


def test_bad_lengths_and_lanes_in_flight_are_refused():
    target = HuggingFaceTarget(tiny_llama())
    lane = target.open()
    target.prefill(lane, TOKENS[:5])
    with pytest.raises(ValueError, match="holds 4 tokens; it cannot be shortened to 5"):
        target.shorten(lane, 5)
    target.forward({lane: TokenTree.from_chain(3)})
    with pytest.raises(RuntimeError, match="cannot shorten a lane while a tree is in flight"):
        target.shorten(lane, 2)
