"""What holds for every drafter, whatever it proposes."""

from __future__ import annotations

import pytest
from draft_steps import bigram_scorer, check_draft, generate, verify
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import (
    AdversaryDrafter,
    DraftContext,
    MixedDrafter,
    NgramSource,
    NoneDrafter,
    OracleDrafter,
    RecyclingSource,
    make_drafter,
)

pytestmark = pytest.mark.core

VOCAB = 12
NAMES = ("none", "ngram", "recycling", "suffix", "mixed", "static", "auto")


def all_drafters() -> dict:
    named = {name: make_drafter(name) for name in NAMES}
    return named | {
        "oracle": OracleDrafter(lambda tokens: [(tokens[-1] + step) % VOCAB for step in range(1, 9)], branches=2),
        "adversary": AdversaryDrafter(),
    }


@settings(max_examples=40, deadline=None)
@given(
    histories=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=3),
    budget=st.integers(1, 40),
    max_depth=st.none() | st.integers(0, 6),
    seed=st.integers(0, 3),
)
def test_every_draft_is_a_valid_tree(histories, budget, max_depth, seed):
    score = bigram_scorer(VOCAB, seed)
    for drafter in all_drafters().values():
        contexts = [DraftContext(list(tokens), VOCAB, max_depth=max_depth) for tokens in histories]
        states = [drafter.start(context) for context in contexts]
        for _ in range(3):
            drafts = drafter.propose(states, contexts, [budget] * len(contexts))
            for draft, context in zip(drafts, contexts, strict=True):
                check_draft(draft, context, budget)
            records = [verify(draft, context.tokens, score) for draft, context in zip(drafts, contexts, strict=True)]
            drafter.observe(states, records)
            for context, record in zip(contexts, records, strict=True):
                context.tokens.extend(record.tokens)


@pytest.mark.parametrize("name", [*NAMES, "oracle", "adversary"])
def test_a_budget_of_one_is_the_lone_root_and_zero_is_refused(name):
    drafter = all_drafters()[name]
    context = DraftContext([1, 2, 3, 1, 2, 3, 1], VOCAB)
    state = drafter.start(context)
    assert len(drafter.propose([state], [context], [1])[0].tree) == 1
    with pytest.raises(ValueError, match="budget"):
        drafter.propose([state], [context], [0])


@pytest.mark.parametrize("name", [*NAMES, "oracle", "adversary"])
def test_context_tokens_are_left_alone(name):
    drafter = all_drafters()[name]
    context = DraftContext([1, 2, 3, 1, 2, 3, 1], VOCAB)
    drafter.propose([drafter.start(context)], [context], [9])
    assert context.tokens == [1, 2, 3, 1, 2, 3, 1]


@settings(max_examples=30, deadline=None)
@given(
    one=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    other=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    budget=st.integers(2, 20),
)
def test_a_draft_does_not_depend_on_the_other_lanes_of_its_step(one, other, budget):
    for name in (*NAMES, "oracle", "adversary"):
        drafter = all_drafters()[name]
        contexts = [DraftContext(list(one), VOCAB), DraftContext(list(other), VOCAB)]
        together = drafter.propose([drafter.start(c) for c in contexts], contexts, [budget, budget + 3])
        alone = drafter.propose([drafter.start(contexts[1])], contexts[1:], [budget + 3])
        assert together[1].tree == alone[0].tree
        assert together[1].scores == alone[0].scores


def test_lanes_keep_their_own_history():
    # lane 0 knows that 1 is followed by 2, lane 1 that it is followed by 3
    contexts = [DraftContext([1, 2, 0, 1], VOCAB), DraftContext([1, 3, 0, 1], VOCAB)]
    drafter = make_drafter("ngram")
    drafts = drafter.propose([drafter.start(c) for c in contexts], contexts, [2, 2])
    assert [draft.tree.tokens for draft in drafts] == [(1, 2), (1, 3)]


def test_none_is_plain_decoding():
    tokens, records = generate(NoneDrafter(), [[1, 2]], 6, 33, VOCAB, bigram_scorer(VOCAB))
    assert len(tokens[0]) == 2 + 6
    assert all(len(record.draft.tree) == 1 for record in records[0])


@pytest.mark.parametrize("name", ["ngram", "recycling", "suffix", "mixed"])
def test_a_repetitive_text_is_foreseen_and_stays_the_targets_own(name):
    def count_up(prefix):
        row = -((bigram_scorer(VOCAB)(prefix) - 0.0).abs())
        row[(prefix[-1] + 1) % VOCAB] = 50.0
        return row

    tokens, records = generate(make_drafter(name), [[0]], 60, 9, VOCAB, count_up)
    assert tokens[0] == [position % VOCAB for position in range(len(tokens[0]))]
    late = records[0][30:]
    assert sum(len(record.tokens) for record in late) / len(late) > 5.0


def test_node_order_is_best_first():
    context = DraftContext([1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 1, 2], VOCAB)
    drafter = MixedDrafter([NgramSource(), RecyclingSource()])
    state = drafter.start(context)
    large = drafter.propose([state], [context], [20])[0]
    assert list(large.scores) == sorted(large.scores, reverse=True)
    for budget in range(1, len(large.tree)):
        small = drafter.propose([state], [context], [budget])[0]
        assert small.tree.tokens == large.tree.tokens[:budget]
        assert small.tree.parents == large.tree.parents[:budget]
