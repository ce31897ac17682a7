"""Token recycling: what goes into the table, what comes out, and the exact two-stage top-k."""

from __future__ import annotations

import pytest
import torch
from draft_steps import bigram_scorer, generate, verify
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.draft import AdjacencyTable, DraftContext, MixedDrafter, RecyclingSource
from branchwise.draft.common_tokens import COMMON_REFRESH
from branchwise.draft.recycling import TOP_K
from branchwise.draft.top_tokens import BLOCK, SMALL_VOCABULARY, top_tokens
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree

pytestmark = pytest.mark.core


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    vocab_size=st.integers(8, 400) | st.integers(SMALL_VOCABULARY, SMALL_VOCABULARY + 5 * BLOCK),
    k=st.integers(1, 8),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    levels=st.sampled_from([3, 1000]),  # 3 different values: ties everywhere
    shift=st.sampled_from([0, -1, -500, -2000]),  # none, some or all entries below zero
    seed=st.integers(0, 1000),
)
def test_two_stages_are_torch_topk(rows, vocab_size, k, dtype, levels, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (rows, vocab_size), generator=generator).add(shift).to(dtype)
    values, indices = top_tokens(logits, k)
    expected = logits.topk(k, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(logits.gather(1, indices), values)
    assert all(len(set(row)) == k for row in indices.tolist())


def test_the_maximum_may_sit_in_the_entries_outside_all_blocks():
    logits = torch.zeros(2, SMALL_VOCABULARY + BLOCK - 1)
    logits[1, -1] = 5.0
    values, indices = top_tokens(logits, 3)
    assert values[1, 0] == 5.0
    assert indices[1, 0] == logits.shape[1] - 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_below_zero_are_ranked_by_value_not_by_bit_pattern(dtype):
    # all of row 0 is negative; -1 has a smaller bit pattern than -2
    logits = torch.full((2, SMALL_VOCABULARY), -2.0, dtype=dtype)
    logits[0, 77] = -1.0
    logits[1, 5] = 1.0
    values, indices = top_tokens(logits, 1)
    assert indices.tolist() == [[77], [5]]
    assert values.tolist() == [[-1.0], [1.0]]


def test_every_verified_node_is_filed_under_its_token_and_pair():
    # 4 - 5 - 6      the root 4 follows 3 in the text
    #   \ 7          5 is accepted, 7 and 6 are not; all four rows are filed
    score = bigram_scorer(20)
    tree = TokenTree((4, 5, 7, 6), (-1, 0, 0, 1))
    source = RecyclingSource(AdjacencyTable())
    context = DraftContext([3, 4], 20)
    state = source.start(context)
    source.begin([state], [context], [4])
    record = verify(DraftTree.deterministic(tree), context.tokens, score)
    source.absorb([state], [record])
    for prefix in ([3, 4], [4, 5], [4, 7], [5, 6]):
        best = score(prefix).topk(TOP_K)
        for row in (source.table.after_token[prefix[-1]], source.table.after_pair[tuple(prefix)]):
            assert list(row.weights) == best.indices.tolist()
            assert list(row.weights.values()) == pytest.approx(best.values.softmax(0).tolist())


def test_the_newest_logits_win_and_old_pairs_are_dropped():
    table = AdjacencyTable(max_pairs=2)
    table.put(1, 2, {3: 1.0})
    table.put(5, 2, {4: 1.0})
    assert table.after_token[2].weights == {4: 1.0}
    table.put(1, 2, {6: 1.0})  # refreshed: (5, 2) is now the oldest
    table.put(8, 9, {7: 1.0})
    assert set(table.after_pair) == {(1, 2), (8, 9)}


def test_common_tokens_are_the_most_written_ones_and_fade():
    table = AdjacencyTable()
    table.count([1])
    assert table.written.evidence.weights == {1: 1.0}  # no waiting for the first ones
    table.count([2, 2, 3] * 100)
    assert list(table.written.evidence.weights)[:2] == [2, 3]
    assert table.written.evidence.weights[2] / table.written.evidence.total == pytest.approx(2 / 3, abs=0.01)
    for _ in range(1000):
        table.count([4] * COMMON_REFRESH)
    assert list(table.written.evidence.weights) == [4]


def test_evidence_goes_from_pair_to_token_to_common_tokens():
    source = RecyclingSource(AdjacencyTable())
    source.table.put(3, 4, {5: 0.9, 6: 0.1})
    source.table.put(None, 4, {7: 0.6, 8: 0.4})
    source.table.count([9])
    context = DraftContext([1, 3], 20)
    state = source.start(context)
    source.begin([state], [context], [4])
    assert [dict(one.weights) for one in source.evidence(state, (4,))] == [{5: 0.9, 6: 0.1}, {7: 0.6, 8: 0.4}, {9: 1.0}]
    assert [dict(one.weights) for one in source.evidence(state, (1, 4))] == [{7: 0.6, 8: 0.4}, {9: 1.0}]
    assert [dict(one.weights) for one in source.evidence(state, ())] == [{9: 1.0}]
    assert all(0 <= one.kind < len(source.trust) for one in source.evidence(state, (4,)))


def test_a_kept_table_makes_the_next_request_start_warm():
    score = bigram_scorer(20)
    drafter = MixedDrafter([RecyclingSource()], name="recycling")
    _, cold = generate(drafter, [[1, 2]], 10, 9, 20, score)
    _, warm = generate(drafter, [[1, 2]], 10, 9, 20, score)
    assert sum(len(r.tokens) for r in warm[0]) > sum(len(r.tokens) for r in cold[0])


def test_a_record_without_output_teaches_nothing_and_harms_nothing():
    source = RecyclingSource(AdjacencyTable())
    context = DraftContext([3], 20)
    state = source.start(context)
    source.begin([state], [context], [4])
    record = verify(DraftTree.deterministic(TokenTree((3,), (-1,))), [3], bigram_scorer(20))
    source.absorb([state], [type(record)(record.draft, record.verdict, record.tokens)])
    assert not source.table.after_token
