"""The two rules that need no draft probabilities, and the registry."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from branchwise.tree import TokenGraph, TokenTree
from branchwise.verify import ONE_HOT, RULES, DraftKind, DraftTree, Greedy, Match, Sampler, SeededCoins, resolve_rule

pytestmark = pytest.mark.core

V = 4


def toy_law(prefix: tuple[int, ...], sharp: float = 1.0) -> Tensor:
    """A law that is a pure function of the whole prefix, with zeros now and then."""
    generator = torch.Generator().manual_seed(hash(prefix) % 2**63)
    weights = torch.rand(V, generator=generator, dtype=torch.float64)
    weights[torch.rand(V, generator=generator) < 0.2] = 0.0
    weights[hash(prefix) % V] += 0.1
    return (weights**sharp) / (weights**sharp).sum()


def random_draft(rng: random.Random, root: int, nodes: int) -> DraftTree:
    paths = [[rng.randrange(V) for _ in range(rng.randrange(1, 5))] for _ in range(nodes)]
    return DraftTree.deterministic(TokenTree.from_paths(root, paths))


def write(rule: object, rng: random.Random, nodes: int, length: int, seed: int) -> list[int]:
    """Generates through drafts of random trees."""
    committed = [0]
    coins = SeededCoins(seed)
    while len(committed) < length:
        draft = random_draft(rng, committed[-1], nodes)
        tree = draft.tree

        def law(node: int, tree: TokenTree = tree, committed: list[int] = committed) -> Tensor:
            return toy_law((*committed, *(tree.tokens[i] for i in tree.path(node)[1:])))

        verdict = rule.accept(draft, law, coins.at(len(committed)))
        assert verdict.path[0] == 0
        assert all(tree.parents[b] == a for a, b in zip(verdict.path, verdict.path[1:], strict=False))
        committed += [tree.tokens[node] for node in verdict.path[1:]] + [verdict.bonus]
    return committed[:length]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 9))
def test_match_writes_what_plain_sampling_writes(seed: int, nodes: int) -> None:
    plain = [0]
    while len(plain) < 60:
        plain.append(SeededCoins(seed).at(len(plain)).choice(toy_law(tuple(plain))))
    assert write(Match(), random.Random(seed), nodes, 60, seed) == plain


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 9))
def test_greedy_writes_the_argmax(seed: int, nodes: int) -> None:
    plain = [0]
    while len(plain) < 60:
        plain.append(int(toy_law(tuple(plain)).argmax()))
    assert write(Greedy(), random.Random(seed), nodes, 60, seed) == plain


def test_match_refuses_twins_and_names_them_and_greedy_takes_the_first() -> None:
    draft = DraftTree.deterministic(TokenTree([0, 1, 2, 1], [-1, 0, 0, 0]))
    law = torch.tensor([0.0, 1.0, 0.0])
    with pytest.raises(ValueError, match=r"'match'.*nodes 1 and 3 below node 0 both carry token 1"):
        Match().accept(draft, lambda node: law, SeededCoins(0))
    assert Greedy().accept(draft, lambda node: law, SeededCoins(0)).path == (0, 1)


def test_a_lone_root_emits_one_token() -> None:
    draft = DraftTree.deterministic(TokenTree([0], [-1]))
    for rule in (Greedy(), Match()):
        verdict = rule.accept(draft, lambda node: torch.tensor([0.0, 0.0, 1.0]), SeededCoins(0))
        assert (verdict.path, verdict.bonus) == ((0,), 2)


def test_auto_takes_the_rule_that_fits() -> None:
    sampling, greedy = Sampler(do_sample=True), Sampler()
    assert resolve_rule("auto", greedy).name == "greedy"
    assert resolve_rule("auto", sampling, DraftKind()).name == "match"
    assert resolve_rule("auto", sampling, DraftKind("mine", deterministic=False), seeded=True).name == "match"
    own = Match()
    assert resolve_rule(own, sampling) is own


def test_unknown_and_unfitting_rules_raise_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"no rule is called 'best'; there are: auto, greedy, match"):
        resolve_rule("best", Sampler())
    with pytest.raises(ValueError, match=r"'greedy' does not fit do_sample=True.*'match'"):
        resolve_rule("greedy", Sampler(do_sample=True))
    assert set(RULES) >= {"greedy", "match"}


def test_a_graph_is_no_draft() -> None:
    graph = TokenGraph([1, 2, 3, 4], [(0, 1), (0, 2), (1, 3), (2, 3)])
    with pytest.raises(ValueError, match="two histories has no single law"):
        DraftTree(graph, (ONE_HOT,) * 3)
