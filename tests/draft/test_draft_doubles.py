"""The test doubles: always right and always wrong. And drafters by name."""

from __future__ import annotations

import pytest
from draft_steps import bigram_scorer, generate

from branchwise.draft import (
    DRAFTERS,
    TARGET_DRAFTERS,
    AdversaryDrafter,
    DraftContext,
    NoneDrafter,
    OracleDrafter,
    make_drafter,
)

pytestmark = pytest.mark.core

VOCAB = 16


def plain(prompt, length, score):
    return generate(NoneDrafter(), [prompt], length, 1, VOCAB, score)[0][0]


@pytest.mark.parametrize("branches", [0, 2])
def test_the_oracle_is_always_right(branches):
    score = bigram_scorer(VOCAB)
    known = [plain([1, 2], 80, score), plain([3], 80, score)]
    budget = 5 * (branches + 1) + 1
    drafter = OracleDrafter(known, branches=branches)
    tokens, records = generate(drafter, [[1, 2], [3]], 10, budget, VOCAB, score)
    for lane, expected in zip(tokens, known, strict=True):
        assert lane == expected[: len(lane)]
    assert all(len(record.tokens) == 6 for lane in records for record in lane)


def test_the_oracle_stops_where_its_knowledge_ends_and_where_it_is_told():
    context = DraftContext([1, 2], VOCAB)
    assert OracleDrafter([[1, 2, 3]]).propose([None], [context], [9])[0].tree.tokens == (2, 3)
    assert OracleDrafter([[5, 6, 7]]).propose([None], [context], [9])[0].tree.tokens == (2,)
    assert OracleDrafter([[1, 2, 3, 4, 5]], reach=2).propose([None], [context], [9])[0].tree.tokens == (2, 3, 4)


def test_the_adversary_with_a_recorded_output_is_never_right():
    score = bigram_scorer(VOCAB)
    known = plain([1, 2], 200, score)
    drafter = AdversaryDrafter(avoid=lambda tokens: [known[len(tokens)]])
    tokens, records = generate(drafter, [[1, 2]], 150, 9, VOCAB, score)
    assert tokens[0] == known[:152]
    assert all(len(record.draft.tree) == 9 for record in records[0])
    assert len({record.draft.tree.parents for record in records[0]}) > 20  # many shapes


def test_the_adversary_with_a_pool_keeps_to_it():
    drafter = AdversaryDrafter(pool=[14, 15])
    context = DraftContext([1], VOCAB)
    draft = drafter.propose([drafter.start(context)], [context], [20])[0]
    assert len(draft.tree) == 20
    assert set(draft.tree.tokens[1:]) == {14, 15}


def test_the_adversary_without_help_is_wrong_almost_always():
    score = bigram_scorer(VOCAB)
    _, records = generate(AdversaryDrafter(), [[1, 2]], 200, 3, VOCAB, score)
    accepted = sum(len(record.tokens) - 1 for record in records[0][1:])
    assert accepted <= 40  # 4 of 16 tokens, at most two tries: chance alone is 25 in 200, unlikely (1e-3) above 40


def test_drafters_by_name():
    assert make_drafter("auto").name == "mixed"
    alone = [name for name in DRAFTERS if name not in ("auto", "model")]
    assert {name: make_drafter(name).name for name in alone} == {name: name for name in alone}
    ready = NoneDrafter()
    assert make_drafter(ready) is ready
    with pytest.raises(ValueError, match=", ".join([*DRAFTERS, *TARGET_DRAFTERS])):
        make_drafter("eagle9")
    with pytest.raises(ValueError, match="no options"):
        make_drafter(ready, table=None)
