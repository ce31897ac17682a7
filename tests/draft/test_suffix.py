"""The suffix source: own text and earlier texts, longer matches trusted more, and a store that learns what is used."""

from __future__ import annotations

import pytest
from draft_steps import bigram_scorer, generate, verify

from branchwise.draft import (
    DraftContext,
    DrafterSource,
    MixedDrafter,
    NgramSource,
    SuffixDrafter,
    SuffixSource,
    SuffixStore,
    make_drafter,
)
from branchwise.draft.sampled import SampledDrafter
from branchwise.draft.suffix import KINDS, OWN_LENGTHS, STORED_LENGTHS

pytestmark = pytest.mark.core

VOCAB = 50


def evidence_at(source: SuffixSource, tokens: list[int], path: tuple[int, ...] = ()) -> list:
    context = DraftContext(tokens, VOCAB)
    lane = source.start(context)
    source.begin([lane], [context], [9])
    return source.evidence(lane, path)


def drafted(drafter, tokens: list[int], budget: int = 20, max_depth=None):
    context = DraftContext(tokens, VOCAB, max_depth=max_depth)
    return drafter.propose([drafter.start(context)], [context], [budget])[0]


def test_counts_of_the_lanes_own_text_by_context():
    # "1 2" was followed by 3 twice and by 4 once, "1 2 3 9 1 2" by 4 once
    found = evidence_at(SuffixSource(), [1, 2, 3, 9, 1, 2, 4, 1, 2, 3, 9, 1, 2])
    assert [(dict(one.weights), one.total) for one in found] == [({4: 1}, 1), ({3: 2, 4: 1}, 3)]
    assert [one.kind // KINDS for one in found] == [OWN_LENGTHS.index(6), OWN_LENGTHS.index(2)]
    assert [one.kind % KINDS for one in found] == [0, 2]
    assert evidence_at(SuffixSource(), [1, 2, 3]) == []


def test_contexts_continue_below_drafted_tokens_also_below_strange_ones():
    tokens = [1, 2, 3, 4, 5, 1, 2]
    assert [dict(one.weights) for one in evidence_at(SuffixSource(), tokens, (3,))] == [{4: 1}]
    assert [dict(one.weights) for one in evidence_at(SuffixSource(), tokens, (3, 5))] == [{1: 1}]
    assert evidence_at(SuffixSource(), tokens, (3, 33)) == []


def test_a_longer_match_is_trusted_more_and_followed_deeper():
    passage = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
    depths, scores = [], []
    for length in (1, 3, 6, 10):
        other = [at % 9 for at in range(40)]  # so that short matches have something to compete with
        draft = drafted(SuffixDrafter(), [*passage, *other, 40, *passage[:length]], budget=8)
        depths.append(draft.tree.height)
        scores.append(draft.scores[0])
    assert scores == sorted(scores) and scores[0] < scores[-1]
    assert depths == sorted(depths)
    trust = SuffixSource.trust
    assert all(trust[kind] <= trust[kind + KINDS] for kind in range(KINDS * (len(OWN_LENGTHS) - 1)))
    assert len(trust) == KINDS * (len(OWN_LENGTHS) + len(STORED_LENGTHS))


def test_texts_of_earlier_requests_are_found_in_the_store():
    store = SuffixStore()
    drafter = SuffixDrafter(store)
    context = DraftContext([1, 2, 3], VOCAB)
    lane = drafter.start(context)
    context.tokens.extend(range(10, 40))
    drafter.finish(lane)
    # the prompt's end leads into the output
    assert list(store.text.passages()) == [[1, 2, 3, *range(10, 40)]]
    draft = drafted(drafter, [30, 7, 2, 3], budget=6)
    assert draft.tree.tokens == (3, 10, 11, 12, 13, 14)
    assert drafted(SuffixDrafter(), [30, 7, 2, 3]).tree.tokens == (3,)
    found = evidence_at(SuffixSource(store), [5, *range(20, 29)])
    assert [(one.kind, dict(one.weights)) for one in found] == [
        (KINDS * (len(OWN_LENGTHS) + STORED_LENGTHS.index(8)), {29: 1})
    ]


def test_only_the_end_of_a_prompt_is_stored():
    store = SuffixStore()
    source = SuffixSource(store)
    context = DraftContext(list(range(30)), VOCAB)
    lane = source.start(context)
    context.tokens.append(40)
    source.finish(lane)
    assert list(store.text.passages()) == [[*range(22, 30), 40]]
    source.finish(source.start(context))  # ended before its first token
    assert len(list(store.text.passages())) == 1


def test_stored_continuations_by_how_long_they_match_and_how_often():
    store = SuffixStore()
    for end in ([7], [7], [8]):
        store.add([1, 2, 3, 4, *end, 0])
    store.add([9, 3, 4, 6, 0])
    found = evidence_at(SuffixSource(store), [5, 1, 2, 3, 4])
    assert [dict(one.weights) for one in found] == [{7: 2, 8: 1}]  # four tokens match, so two are not looked at
    found = evidence_at(SuffixSource(store), [5, 0, 0, 3, 4])
    assert [(dict(one.weights), one.total) for one in found] == [({6: 1, 8: 1, 7: 2}, 4)]
    assert next(iter(found[0].weights)) == 7


def test_what_the_target_confirms_is_a_use_of_its_block():
    store = SuffixStore()
    store.add(range(10, 40))
    drafter = SuffixDrafter(store)
    context = DraftContext([1, *range(10, 20)], VOCAB)
    lane = drafter.start(context)
    for used, (step, right) in enumerate([(0, True), (1, True), (2, False)], start=0):
        (draft,) = drafter.propose([lane], [context], [4])
        assert draft.tree.tokens[1:] == tuple(range(20 + 4 * step, 23 + 4 * step))
        assert list(store.uses) == [used]

        def target(prefix, right=right):
            row = -bigram_scorer(VOCAB)(prefix).abs()
            row[(prefix[-1] + 1) % VOCAB if right else 0] = 50.0
            return row

        record = verify(draft, context.tokens, target)
        context.tokens.extend(record.tokens)
        drafter.observe([lane], [record])
    assert list(store.uses) == [2]


def test_a_kept_drafter_makes_the_next_request_better_and_the_output_stays():
    score = bigram_scorer(VOCAB)
    drafter = SuffixDrafter()

    def run() -> tuple[list[int], float]:
        tokens, records = [], []
        context = DraftContext([1, 2], VOCAB)
        lane = drafter.start(context)
        for _ in range(10):
            (draft,) = drafter.propose([lane], [context], [9])
            record = verify(draft, context.tokens, score)
            drafter.observe([lane], [record])
            context.tokens.extend(record.tokens)
            records.append(record)
        drafter.finish(lane)
        tokens = context.tokens
        return tokens, sum(len(record.tokens) for record in records) / len(records)

    cold, cold_rate = run()
    warm, warm_rate = run()
    assert warm[: len(cold)] == cold
    assert warm_rate > cold_rate + 0.5
    drafter.store.check_integrity()


def test_finish_reaches_the_source_through_every_wrapping_drafter():
    for wrap in (
        lambda source: MixedDrafter([NgramSource(), source]),
        lambda source: SampledDrafter(MixedDrafter([source])),
        lambda source: MixedDrafter([DrafterSource(MixedDrafter([source], name="inner"))]),
        lambda source: make_drafter("static", source=source),
    ):
        store = SuffixStore()
        drafter = wrap(SuffixSource(store))
        context = DraftContext([1], VOCAB)
        lane = drafter.start(context)
        context.tokens.extend([2, 3])
        drafter.finish(lane)
        assert list(store.text.passages()) == [[1, 2, 3]]


def test_a_store_of_another_vocabulary_is_refused_at_the_start():
    store = SuffixStore()
    SuffixDrafter(store).start(DraftContext([1], VOCAB))
    with pytest.raises(ValueError, match="vocabulary of 50, the model has 51"):
        SuffixDrafter(store).start(DraftContext([1], VOCAB + 1))


def test_long_runs_keep_automaton_and_store_whole():
    drafter = SuffixDrafter(SuffixStore(300))
    for seed in range(4):
        context = DraftContext([seed, 1, 2], 12)
        lane = drafter.start(context)
        score = bigram_scorer(12, seed % 2)
        for _ in range(40):
            (draft,) = drafter.propose([lane], [context], [7])
            record = verify(draft, context.tokens, score)
            drafter.observe([lane], [record])
            context.tokens.extend(record.tokens)
        lane.sources[0].own.check_integrity()
        drafter.finish(lane)
        drafter.store.check_integrity()
    assert len(generate(drafter, [[1, 2]], 5, 9, 12, bigram_scorer(12))[0][0]) >= 7
