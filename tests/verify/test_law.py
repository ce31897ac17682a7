"""Laws: every processor on the node's own prefix, nothing shared written to, errors that name the node."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from transformers.generation import logits_process as own
from transformers.generation.logits_process import LogitsProcessorList

from branchwise.tree import TokenTree
from branchwise.verify import DraftTree, LawMaker, Sampler, TreeLaw

pytestmark = pytest.mark.core

V = 11

#       0 (token 3)
#      /  |  \
#   1:4  2:5  3:4     nodes 1 and 3 share a token, 4 and 5 differ only by their parent
#    |    |
#   4:6  5:6
TREE = TokenTree([3, 4, 5, 4, 6, 6], [-1, 0, 0, 0, 1, 2])
DRAFT = DraftTree.deterministic(TREE)
COMMITTED = [1, 2, 9, 3]


def logits(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(len(TREE), V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) * 3


def own_prefix(node: int) -> list[int]:
    """The oracle: walk up to the root, then prepend what is committed."""
    path = []
    while node:
        path.append(TREE.tokens[node])
        node = TREE.parents[node]
    return COMMITTED + path[::-1]


class BanSum(own.LogitsProcessor):
    """Bans token (sum of prefix) mod V: any shortcut that shares a vector between nodes shows."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, int(input_ids.sum()) % V] = -math.inf  # in place, as user code may
        return scores


def processor_sets() -> dict[str, list[object]]:
    return {
        "none": [],
        "temperature": [own.TemperatureLogitsWarper(0.7)],
        "truncation": [
            own.TemperatureLogitsWarper(1.3), own.TopKLogitsWarper(6), own.TopPLogitsWarper(0.8),
            own.MinPLogitsWarper(0.02),
        ],
        "slow truncation": [
            own.TypicalLogitsWarper(0.8), own.EpsilonLogitsWarper(0.01), own.EtaLogitsWarper(0.01),
            own.LogitNormalization(),
        ],
        "repetition": [own.RepetitionPenaltyLogitsProcessor(1.7)],
        "n-grams": [own.NoRepeatNGramLogitsProcessor(2)],
        "length": [own.MinLengthLogitsProcessor(6, 0), own.MinNewTokensLengthLogitsProcessor(4, 2, 0)],
        "forced": [own.ForcedEOSTokenLogitsProcessor(6, 0)],
        "bad words": [own.NoBadWordsLogitsProcessor([[4, 6], [7]])],
        "bias": [own.SequenceBiasLogitsProcessor({(5, 6): 3.0, (8,): -2.0})],
        "user": [BanSum(), own.TemperatureLogitsWarper(0.7)],
        "everything": [
            own.RepetitionPenaltyLogitsProcessor(1.2), own.NoRepeatNGramLogitsProcessor(3), BanSum(),
            own.TemperatureLogitsWarper(0.9), own.TopKLogitsWarper(8), own.TopPLogitsWarper(0.9),
        ],
    }  # fmt: skip


@pytest.mark.parametrize("name", processor_sets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_each_law_is_transformers_own_on_that_prefix(name: str, dtype: torch.dtype) -> None:
    rows = logits(dtype=dtype)
    before = rows.clone()
    law = TreeLaw(DRAFT, COMMITTED, rows, Sampler(True, LogitsProcessorList(processor_sets()[name])))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for node in range(len(TREE)):
        chain = LogitsProcessorList(processor_sets()[name])
        expected = chain(torch.tensor([own_prefix(node)]), before[node : node + 1].clone().to(wide))[0]
        assert torch.equal(law.scores(node), expected)
        assert torch.equal(law.logits(node), before[node].to(wide))
        assert law(node).dtype == wide
        assert torch.allclose(law(node), expected.softmax(0), rtol=1e-6, atol=1e-9)
        assert law(node) is law(node), "kept for the step"
    assert torch.equal(rows, before), "the target's logits were written to"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(sorted(set(processor_sets()) - {"slow truncation"})))
def test_greedy_law_is_the_one_hot_of_transformers_argmax(seed: int, name: str) -> None:
    rows = logits(seed, torch.bfloat16)
    law = TreeLaw(DRAFT, COMMITTED, rows, Sampler(False, processor_sets()[name]))
    for node in range(len(TREE)):
        chain = LogitsProcessorList(processor_sets()[name])
        best = int(chain(torch.tensor([own_prefix(node)]), rows[node : node + 1].float())[0].argmax())
        assert law(node).tolist() == [float(token == best) for token in range(V)]


def test_greedy_ties_go_to_the_lowest_id_and_float64_is_rounded_as_transformers_rounds() -> None:
    tied = torch.zeros(1, 5)
    tied[0, [1, 3]] = 2.0
    alone = DraftTree.deterministic(TokenTree([0], [-1]))
    assert TreeLaw(alone, [0], tied, Sampler())(0).argmax() == 1
    nearly = tied.double()
    nearly[0, 3] += 1e-12
    assert TreeLaw(alone, [0], nearly, Sampler())(0).argmax() == 1  # generate() sees float32
    assert TreeLaw(alone, [0], nearly, Sampler(do_sample=True))(0).argmax() == 3


def test_two_siblings_that_differ_only_by_their_parent_have_different_laws() -> None:
    rows = torch.ones(len(TREE), V)  # nodes 4 and 5 carry the same token and the same logits
    law = TreeLaw(DRAFT, COMMITTED, rows, Sampler(True, [own.RepetitionPenaltyLogitsProcessor(2.0)]))
    assert law(4)[4] < law(4)[5]
    assert law(5)[5] < law(5)[4]


def test_only_visited_nodes_are_evaluated() -> None:
    calls = []

    class Spy(own.LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            calls.append(input_ids.tolist()[0])
            return scores

    law = TreeLaw(DRAFT, COMMITTED, logits(), Sampler(True, [Spy()]))
    law(5), law(0), law(5)
    assert calls == [[*COMMITTED, 5, 6], COMMITTED]
    assert law.visited == (5, 0)


def test_a_lane_of_many_steps_grows_its_prefix_and_old_laws_stay_true() -> None:
    seen = []

    class Spy(own.LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            seen.append(input_ids)
            return scores

    maker = LawMaker(Sampler(True, [Spy()]))
    committed = [2] * 500 + [3]
    first = maker.laws(DRAFT, committed, logits())
    first(4)
    committed += [4, 8, 3]
    maker.laws(DRAFT, committed, logits())(2)
    first(5)
    assert seen[0].tolist() == [[2] * 500 + [3, 4, 6]]
    assert seen[1].tolist() == [[2] * 500 + [3, 4, 8, 3, 5]]
    assert seen[2].tolist() == [[2] * 500 + [3, 5, 6]]


def test_the_blind_chain_never_builds_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    from branchwise.verify.law import PrefixBuffer

    monkeypatch.setattr(PrefixBuffer, "below", lambda *args: pytest.fail("nobody reads the prefix"))
    for name in ("none", "truncation", "slow truncation"):
        TreeLaw(DRAFT, COMMITTED, logits(), Sampler(True, processor_sets()[name]))(4)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("name", ["none", "truncation", "user"])
def test_nan_logits_name_the_node_and_only_when_visited(do_sample: bool, name: str) -> None:
    rows = logits()
    rows[4, 2] = math.nan
    law = TreeLaw(DRAFT, COMMITTED, rows, Sampler(do_sample, processor_sets()[name]))
    for node in (0, 1, 2, 3, 5):
        law(node)
    with pytest.raises(ValueError, match=r"node 4 \(token 6, position 5\) held NaN"):
        law(4)


def test_a_law_without_tokens_raises_when_sampling() -> None:
    class BanAll(own.LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return torch.full_like(scores, -math.inf)

    with pytest.raises(ValueError, match="forbade every token after node 1"):
        TreeLaw(DRAFT, COMMITTED, logits(), Sampler(True, [BanAll()]))(1)
    rows = logits()
    rows[1, 3] = math.inf
    with pytest.raises(ValueError, match=r"node 1 .*plus infinity"):
        TreeLaw(DRAFT, COMMITTED, rows, Sampler(True))(1)


def test_processors_without_a_value_on_trees_are_refused() -> None:
    class Wants(own.LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor, extra: int) -> Tensor:
            return scores

    with pytest.raises(ValueError, match="beyond input_ids and scores: extra"):
        Sampler(True, [Wants()])
    guidance = own.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, None)
    with pytest.raises(ValueError, match="keeps a state"):
        Sampler(True, [guidance])


def test_bad_shapes_and_a_wrong_root_raise() -> None:
    with pytest.raises(ValueError, match=r"6 nodes needs logits \[N, V\]"):
        TreeLaw(DRAFT, COMMITTED, torch.zeros(3, V), Sampler())
    with pytest.raises(ValueError, match="must be the root 3"):
        TreeLaw(DRAFT, [1, 2], torch.zeros(6, V), Sampler())
