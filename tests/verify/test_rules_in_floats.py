"""The rules on tensors: rounding, zeros, ties, extreme coins, shared storage."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from branchwise.losslessness import KINDS, Shape, ToyPair, kary
from branchwise.losslessness.check import distance, law_written
from branchwise.tree import TokenTree
from branchwise.verify import (
    ONE_HOT,
    RULES,
    BestPath,
    Block,
    DraftKind,
    DraftTree,
    MultiRound,
    Rejection,
    Sampled,
    Sampler,
    SeededCoins,
    Traversal,
    Typical,
    Verdict,
    choose,
    resolve_rule,
    sample_children,
)

pytestmark = pytest.mark.core

JUST_UNDER_ONE = 1.0 - 2.0**-53
V = 4
PREFIXES = [(), *((a,) for a in range(V)), *((a, b) for a in range(V) for b in range(V))]

WEIGHT = st.one_of(
    st.just(0.0), st.just(0.25), st.just(1.0), st.floats(0.01, 1.0), st.just(1e-310), st.just(5e-324), st.just(1e-30)
)
LAW = st.lists(WEIGHT, min_size=V, max_size=V).filter(lambda weights: sum(weights) > 1e-3)


class FixedCoin:
    """Every uniform draw comes out as ``u``."""

    def __init__(self, u: float) -> None:
        self.u = u

    def bernoulli(self, p: float) -> bool:
        assert not math.isnan(p)
        return self.u < p

    def choice(self, vector: Tensor) -> int:
        return choose(vector, self.u)


def normal(weights: list[float], dtype: torch.dtype) -> Tensor:
    vector = torch.tensor(weights, dtype=torch.float64)
    return (vector / vector.sum()).to(dtype)


@st.composite
def pairs(draw: st.DrawFn) -> ToyPair:
    """Random laws, some of them shared by target and draft, in one of three types."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    pool = [normal(draw(LAW), dtype) for _ in range(5)]
    laws = [{prefix: pool[draw(st.integers(0, 4))] for prefix in PREFIXES} for _ in range(2)]
    return ToyPair(V, *laws)


@settings(max_examples=25, deadline=None)
@given(pairs(), st.sampled_from(["multiround", "rejection", "traversal"]), st.sampled_from(sorted(KINDS)))
def test_random_laws_are_written_exactly(pair: ToyPair, name: str, kind: str) -> None:
    """All drafts, all coins, in tensors of the given type: bfloat16 laws are vectors like any other."""
    law, _ = law_written(RULES[name].make().accept, KINDS[kind], kary(2, 1), pair)
    assert distance(law, pair, 3) <= 1e-12


@settings(max_examples=25, deadline=None)
@given(pairs(), st.sampled_from(["match", "block", "best_path"]))
def test_random_laws_are_written_exactly_by_the_rules_of_special_shapes(pair: ToyPair, name: str) -> None:
    shape, kind = {
        "match": (kary(2, 1), "without replacement"),
        "block": (kary(1, 1), "with replacement"),
        "best_path": (kary(2, 1), "with replacement"),
    }[name]
    law, _ = law_written(RULES[name].make().accept, KINDS[kind], shape, pair)
    assert distance(law, pair, 3) <= 1e-12


def draw_draft(pair: ToyPair, kind: str, shape: Shape, seed: int) -> tuple[DraftTree, dict[int, tuple[int, ...]]]:
    """One draft with real coins, and the prefix of each node."""
    from branchwise.losslessness.growing import Spot

    coins = SeededCoins(seed).drafting()
    tokens, parents, proposals = [0], [-1], []
    spots = [Spot()]
    for node, spot in enumerate(spots):
        children = KINDS[kind](pair.draft[spot.prefix], shape.width(spot, lambda token: 1.0), coins)
        for rank, (token, proposal) in enumerate(children if shape.width(spot, lambda token: 1.0) else []):
            tokens.append(token)
            parents.append(node)
            proposals.append(proposal)
            spots.append(Spot((*spot.prefix, token), (*spot.ranks, rank)))
    return DraftTree(TokenTree(tokens, parents), tuple(proposals)), {i: spot.prefix for i, spot in enumerate(spots)}


@settings(max_examples=150, deadline=None)
@given(
    pairs(),
    st.sampled_from(["multiround", "rejection", "traversal"]),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([0.0, 2.0**-53, 0.5, JUST_UNDER_ONE]),
    st.integers(0, 100),
)
def test_no_coin_lets_a_forbidden_token_through(pair: ToyPair, name: str, kind: str, u: float, seed: int) -> None:
    """At 0.0 exactly and just under 1.0: neither an accepted nor a bonus token has probability 0."""
    draft, prefix = draw_draft(pair, kind, kary(2, 2), seed)
    kept = {key: law.clone() for key, law in (pair.target | pair.draft).items()}
    verdict = RULES[name].make().accept(draft, lambda node: pair.target[prefix[node]], FixedCoin(u))
    for above, node in zip(verdict.path, verdict.path[1:], strict=False):
        assert draft.tree.parents[node] == above
        assert float(pair.target[prefix[above]][draft.tree.tokens[node]]) > 0
    assert float(pair.target[prefix[verdict.path[-1]]][verdict.bonus]) > 0
    for key, law in (pair.target | pair.draft).items():
        assert torch.equal(law, kept[key]), "a law was changed in place"


def star(tokens: list[int], vector: Tensor, replacement: bool = False) -> DraftTree:
    proposal = Sampled(vector, replacement)
    return DraftTree(TokenTree([0, *tokens], [-1] + [0] * len(tokens)), (proposal,) * len(tokens))


@pytest.mark.parametrize("rule", [Rejection, MultiRound, Traversal, Block, BestPath])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_residual_without_mass_falls_back_to_the_law_and_is_counted(rule: type, dtype: torch.dtype) -> None:
    """Draft and target agree to the last bit, yet a coin says no: float rounding can do that, NaN must not follow."""
    vector = normal([0.1, 0.2, 0.3, 0.4], dtype)

    class Contrary(FixedCoin):
        def bernoulli(self, p: float) -> bool:
            assert not math.isnan(p)
            return False

    judge = rule()
    verdict = judge.accept(star([2], vector, replacement=True), lambda node: vector, Contrary(JUST_UNDER_ONE))
    assert verdict == Verdict((0,), 3)
    assert judge.zero_residuals == 1


@pytest.mark.parametrize("rule", [Block, Traversal, BestPath])
@pytest.mark.parametrize("left", [0.0, 5e-324])
def test_a_residual_of_nothing_divides_nothing(rule: type, left: float) -> None:
    """What is left below the root is nothing, or 5e-324, at a reach of 1: ``left + 1 - reach`` would be 0."""
    laws = [torch.tensor([0.0, 1.0, left], dtype=torch.float64), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)]
    draft = DraftTree(TokenTree([0, 1, 1], [-1, 0, 1]), (Sampled(laws[1], True), Sampled(laws[1], True)))

    class FirstSaysNo(FixedCoin):
        thrown = 0

        def bernoulli(self, p: float) -> bool:
            assert 0 <= p <= 1
            self.thrown += 1
            return self.thrown > 1 and p > 0

    assert rule().accept(draft, lambda node: laws[0], FirstSaysNo(0.5)).bonus in (1, 2)


def test_a_residual_that_only_rounding_made_never_holds_a_forbidden_token() -> None:
    target = torch.tensor([0.1, 0.2, 0.7, 0.0])
    draft = (target.double() / target.double().sum()).float() * (1 + 1e-7)
    for u in (0.0, 0.5, JUST_UNDER_ONE):
        coins = FixedCoin(u)
        coins.bernoulli = lambda p: False
        assert Rejection().accept(star([0], draft), lambda node: target, coins).bonus != 3


def test_rows_that_share_storage_are_never_changed() -> None:
    """The target's laws are views of one matrix, and the proposal is a row of it too."""
    rows = torch.rand(6, 50, generator=torch.Generator().manual_seed(1))
    rows /= rows.sum(1, keepdim=True)
    before = rows.clone()
    for seed in range(20):
        tokens, proposal = sample_children(rows[5], 3, SeededCoins(seed).drafting())
        draft = DraftTree(TokenTree([0, *tokens, 1], [-1, 0, 0, 0, 1]), (proposal,) * 3 + (ONE_HOT,))
        for rule in (Rejection(), MultiRound(), Traversal(), Typical()):
            rule.accept(draft, lambda node: rows[node], SeededCoins(seed))
    assert torch.equal(rows, before)


@pytest.mark.parametrize("rule", [Rejection, Traversal, MultiRound, Block])
def test_a_token_its_proposal_could_not_draw_names_the_node(rule: type) -> None:
    vector = torch.tensor([0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match="node 1 carries token 2, which its proposal gives probability 0"):
        rule().accept(star([2], vector), lambda node: torch.full((3,), 1 / 3), SeededCoins(0))


def test_a_token_drawn_twice_without_replacement_names_the_node() -> None:
    vector = torch.tensor([0.5, 0.3, 0.2])
    law = torch.tensor([0.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="node 2 carries token 1"):
        Rejection().accept(star([1, 1], vector), lambda node: law, SeededCoins(0))


def test_siblings_of_different_proposals_are_refused() -> None:
    first, second = Sampled(torch.tensor([0.5, 0.5])), Sampled(torch.tensor([0.5, 0.5]))
    draft = DraftTree(TokenTree([0, 0, 1], [-1, 0, 0]), (first, second))
    with pytest.raises(ValueError, match="node 2 and an earlier sibling below node 0"):
        Rejection().accept(draft, lambda node: torch.tensor([1e-9, 1 - 1e-9]), FixedCoin(0.9))


def test_a_proposal_over_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="covers 3 tokens but a proposal covers 2"):
        Rejection().accept(
            star([0], torch.tensor([0.9, 0.1])), lambda node: torch.tensor([0.1, 0.1, 0.8]), FixedCoin(0.9)
        )


def test_best_path_refuses_what_is_no_set_of_rollouts_and_says_why() -> None:
    law = lambda node: torch.full((6,), 1 / 6)  # noqa: E731
    uniform = torch.full((6,), 1 / 6)
    with pytest.raises(ValueError, match=r"holds 5 rollouts.*at most 4.*skewed"):
        BestPath().accept(star([0, 1, 2, 3, 4], uniform, replacement=True), law, SeededCoins(0))
    with pytest.raises(ValueError, match=r"without replacement.*'best_path'"):
        BestPath().accept(star([0, 1], uniform), law, SeededCoins(0))
    with pytest.raises(ValueError, match="lengths"):
        uneven = DraftTree(TokenTree([0, 1, 2, 3], [-1, 0, 0, 1]), (Sampled(uniform, True),) * 3)
        BestPath().accept(uneven, law, SeededCoins(0))
    with pytest.raises(ValueError, match="'best_path' does not fit drafter 'mine', which picks"):
        resolve_rule("best_path", Sampler(do_sample=True), DraftKind("mine"))
    rollouts = DraftKind("mine", deterministic=False, shape="rollouts")
    assert resolve_rule("best_path", Sampler(do_sample=True), rollouts).name == "best_path"
    assert resolve_rule("auto", Sampler(do_sample=True), DraftKind("mine", deterministic=False)).name == "traversal"


def test_block_names_traversal_as_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"rule 'block'.*node 0.*rule 'traversal'"):
        Block().accept(star([0, 1], torch.full((3,), 1 / 3)), lambda node: torch.full((3,), 1 / 3), SeededCoins(0))


@pytest.mark.parametrize("name", ["rejection", "traversal", "match"])
def test_seeded_drafts_and_verdicts_are_independent(name: str) -> None:
    """4,000 steps from one seed, drafting and verifying: the law of two tokens, each cell within 6 sigma.

    If the drafter saw the coins of the verifier, or consecutive steps shared coins, accepted tokens would be too many.
    """
    target = torch.tensor([0.5, 0.3, 0.2, 0.0])
    drafted = torch.tensor([0.2, 0.2, 0.3, 0.3])
    rule = RULES[name].make()
    counts = torch.zeros(4, 4)
    committed, coins, n = 1, SeededCoins(11), 4000
    run: list[int] = []
    for _ in range(n):
        tokens, proposal = sample_children(drafted, 2, coins.at(committed).drafting())
        draft = DraftTree(TokenTree([0, *tokens], [-1, 0, 0]), (proposal,) * 2)
        verdict = rule.accept(draft, lambda node: target, coins.at(committed))
        run += [draft.tree.tokens[node] for node in verdict.path[1:]] + [verdict.bonus]
        committed += len(verdict.path)
    for first, second in zip(run[::2], run[1::2], strict=False):
        counts[first, second] += 1
    expected = torch.outer(target, target) * (len(run) // 2)
    assert bool(((counts - expected).abs() <= 6 * expected.clamp(min=1e-9).sqrt()).all())
