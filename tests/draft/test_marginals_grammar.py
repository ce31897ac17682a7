"""Trees of marginals under a grammar."""

from __future__ import annotations

import torch

from branchwise.draft import DraftContext
from branchwise.draft.marginals import best_tree, marginals_of
from branchwise.verify import Grammar
from grammar_rig import MODEL_VOCAB, PATTERN, legal_by_list, piece_tokenizer, token_of


def test_illegal_tokens_are_passed_over_and_forced_ones_drafted():
    """The pattern allows no x at the start, whatever the marginals think of it."""
    grammar = Grammar.from_regex(PATTERN).compile(piece_tokenizer(), MODEL_VOCAB).start()
    law = torch.full((3, MODEL_VOCAB), 1e-3, dtype=torch.float64)
    law[:, token_of("x")], law[:, token_of("a")], law[:, token_of("1")] = 0.5, 0.3, 0.15
    context = DraftContext([1, 5], MODEL_VOCAB, grammar=grammar)
    draft = best_tree(marginals_of(law.log()[None])[0], context, 12, "heads")
    tree = draft.tree
    paths = [[tree.tokens[i] for i in tree.path(node)[1:]] for node in range(1, len(tree))]
    assert len(tree) == 12
    assert all(token in legal_by_list(path[:depth]) for path in paths for depth, token in enumerate(path))
    a, one = token_of("a"), token_of("1")
    assert paths[:3] == [[a], [a, one], [a, one, one]]
    assert "heads" in draft.sources


def test_what_a_grammar_forces_goes_on_below_the_last_position():
    grammar = Grammar.from_ebnf('root ::= "x" "x" "x" "x"').compile(piece_tokenizer(), MODEL_VOCAB).start()
    context = DraftContext([1, 5], MODEL_VOCAB, grammar=grammar, max_depth=3)
    (marginals,) = marginals_of(torch.zeros(1, 1, MODEL_VOCAB))
    draft = best_tree(marginals, context, 12, "heads")
    assert draft.tree.tokens == (5, *[token_of("x")] * 3)
    assert draft.sources == ("grammar",) * 3
