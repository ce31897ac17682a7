"""Drafting under a grammar: illegal candidates are gone before they cost a node, forced ones come for free."""

from __future__ import annotations

import random

import pytest
import torch

from branchwise.draft.best_first import grow
from branchwise.draft.grammar import AHEAD_ESTIMATE, legal_vector, prune, within_grammar
from branchwise.draft.protocol import DraftContext
from branchwise.draft.registry import make_drafter
from branchwise.tree import TokenTree
from branchwise.verify import ONE_HOT, DraftTree, Grammar, GrammarState, Sampled
from drafters import RandomTrees
from grammar_rig import EOS, MODEL_VOCAB, PATTERN, legal_by_list, piece_tokenizer, token_of

TOKENIZER = piece_tokenizer()
A, B, X, ONE, TWO, AB, TWELVE = (token_of(text) for text in ("a", "b", "x", "1", "2", "ab", "12"))


def start(grammar: Grammar) -> GrammarState:
    return grammar.compile(TOKENIZER, MODEL_VOCAB).start()


def paths_of(tree: TokenTree) -> list[list[int]]:
    return [[tree.tokens[i] for i in tree.path(node)[1:]] for node in range(len(tree))]


def is_legal(path: list[int]) -> bool:
    return all(token in legal_by_list(path[:depth]) for depth, token in enumerate(path))


@pytest.mark.parametrize("seed", range(40))
def test_prune_keeps_exactly_the_legal_paths(seed: int) -> None:
    context = DraftContext([1], MODEL_VOCAB)
    (draft,) = RandomTrees(seed).propose([None], [context], [200])
    # random tokens are hardly ever legal twice in a row: draw most of them from the legal ones
    walk, tokens, tree = random.Random(seed), list(draft.tree.tokens), draft.tree
    for node in range(1, len(tree)):
        path = [tokens[i] for i in tree.path(tree.parents[node])[1:]]
        choices = sorted(legal_by_list(path))
        if choices and walk.random() < 0.7:
            tokens[node] = walk.choice(choices)
    scores = [node / 1000 for node in range(1, len(tree))]
    draft = DraftTree.deterministic(TokenTree(tokens, tree.parents), "random", scores)
    pruned = prune(draft, start(Grammar.from_regex(PATTERN)))
    kept = [node for node, path in enumerate(paths_of(draft.tree)) if is_legal(path)]
    assert paths_of(pruned.tree) == [paths_of(draft.tree)[node] for node in kept]
    assert list(pruned.scores) == [scores[node - 1] for node in kept[1:]], "scores stay with their nodes"
    assert len(pruned.sources) == len(pruned.proposals) == len(kept) - 1


def test_a_legal_draft_is_left_alone() -> None:
    draft = DraftTree.deterministic(TokenTree([1, A, AB, TWELVE], [-1, 0, 0, 1]))
    assert prune(draft, start(Grammar.from_regex(PATTERN))) is draft


def test_sampled_children_stay_whatever_they_are() -> None:
    """A one-hot X and a sampled X, both illegal; below the sampled one a one-hot child and a sampled one."""
    vector = torch.full((MODEL_VOCAB,), 1.0 / MODEL_VOCAB)
    sampled = Sampled(vector)
    tree = TokenTree([1, X, X, A, B, A, B], [-1, 0, 0, 0, 1, 2, 2])
    draft = DraftTree(tree, (ONE_HOT, sampled, sampled, ONE_HOT, ONE_HOT, sampled))
    pruned = prune(draft, start(Grammar.from_regex(PATTERN)))
    assert pruned.tree.tokens == (1, X, A, B) and pruned.tree.parents == (-1, 0, 0, 1)
    assert pruned.proposals == (sampled, sampled, sampled)


def test_vectors_are_masked_before_drawing() -> None:
    state = start(Grammar.from_regex(PATTERN))
    vector = torch.rand(MODEL_VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = vector.clone()
    masked = legal_vector(state, (A,), vector)
    assert masked is not None and set(masked.nonzero()[:, 0].tolist()) == legal_by_list([A])
    assert float(masked.sum()) == pytest.approx(1.0) and torch.equal(vector, before)
    nothing = torch.zeros(MODEL_VOCAB)
    nothing[X] = 1.0
    assert legal_vector(state, (A,), nothing) is None
    assert legal_vector(state, (X,), vector) is vector, "a dead path says nothing"


def test_illegal_candidates_leave_their_mass_to_the_legal_ones() -> None:
    state = start(Grammar.from_regex("(a|b|1)x+2"))
    assert state.legal(()) == [A, B, ONE]
    asked = []

    def expand(path, least):
        asked.append(path)
        return [(X, 0.5, "s"), (A, 0.3, "s"), (B, 0.1, "t"), (EOS, 0.05, "t")]

    found = {token: (estimate, source) for token, estimate, source in within_grammar(state, expand)((), 0.01)}
    spare = 1 - 0.4 / 0.45
    assert found[A] == (pytest.approx(0.3 / 0.45 + spare / 3), "s")
    assert found[B] == (pytest.approx(0.1 / 0.45 + spare / 3), "t")
    assert found[ONE] == (pytest.approx(spare / 3), "grammar"), "few legal tokens are all named"
    assert len(found) == 3 and asked == [()]


def test_forced_texts_are_free_chains() -> None:
    state = start(Grammar.from_ebnf('root ::= "12" "bb" "a" ("x" | "b") "2"'))

    def expand(path, least):
        return []

    growth = grow(1, 8, None, MODEL_VOCAB, within_grammar(state, expand))
    assert growth.tokens[1:4] == [TWELVE, token_of("bb"), A] and growth.parents[1:4] == [0, 1, 2]
    estimate = AHEAD_ESTIMATE + (1 - AHEAD_ESTIMATE) / 2  # one of two legal tokens
    assert growth.scores[1:3] == pytest.approx([estimate, estimate**2])
    assert set(growth.sources[1:]) == {"grammar"}


@pytest.mark.parametrize("name", ["ngram", "recycling", "mixed"])
def test_named_drafters_draft_forced_chains_that_they_have_never_seen(name: str) -> None:
    state = start(Grammar.from_ebnf('root ::= "x" "x" "x" "x" "{" "{"'))
    drafter = make_drafter(name)
    context = DraftContext([1, 5], MODEL_VOCAB, grammar=state)
    (draft,) = drafter.propose([drafter.start(context)], [context], [10])
    assert draft.tree.tokens == (5, X, X, X, X, token_of("{"), token_of("{"), EOS)
    assert draft.tree.parents == tuple(range(-1, 7))
    assert draft.sources == ("grammar",) * 7 and draft.scores == (1.0,) * 7


def test_without_a_grammar_nothing_changes() -> None:
    drafter = make_drafter("ngram")
    context = DraftContext([5, 6, 5, 6, 5], MODEL_VOCAB)
    (draft,) = drafter.propose([drafter.start(context)], [context], [4])
    assert set(draft.sources) == {"ngram"}
