"""A small model under a grammar: illegal tokens are never drafted, forced ones for free; the text stays the same."""

from __future__ import annotations

import pytest

from branchwise import Speculator
from branchwise.draft.protocol import DraftContext
from branchwise.verify import Grammar
from grammar_rig import EOS, LANGUAGE, MODEL_VOCAB, PATTERN, legal_by_list, piece_tokenizer, text_of, token_of
from oracles import logits_by_recompute
from small_model_rig import KINDS, mixed_with, paths_of, small
from zoo import tiny_llama


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_grammar_nothing_illegal_is_drafted_and_the_ranks_are_those_of_legal_tokens(kind):
    state = Grammar.from_regex(PATTERN).compile(piece_tokenizer(), MODEL_VOCAB).start()
    model = tiny_llama(seed=1)
    context = DraftContext([1, 5], MODEL_VOCAB, grammar=state)
    drafter = small(model, kind)
    (draft,) = drafter.propose([drafter.start(context)], [context], [12])
    assert len(draft.tree) >= 4
    for path in paths_of(draft.tree):
        assert all(token in legal_by_list(path[:depth]) for depth, token in enumerate(path)), path
    if kind == "chain":
        scores = logits_by_recompute(model, [1, 5])[-1]
        legal = sorted(legal_by_list([]))
        assert draft.tree.tokens[1] == legal[int(scores[legal].argmax())]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "static"])
def test_a_forced_text_is_drafted_to_its_end(kind):
    """Static trees do not follow: their ranks are taken level by level."""
    state = Grammar.from_ebnf('root ::= "x" "x" "x" "x" "{" "{"').compile(piece_tokenizer(), MODEL_VOCAB).start()
    context = DraftContext([1, 5], MODEL_VOCAB, grammar=state)
    drafter = small(tiny_llama(seed=1), kind)
    (draft,) = drafter.propose([drafter.start(context)], [context], [10])
    x, brace = token_of("x"), token_of("{")
    assert draft.tree.tokens == (5, x, x, x, x, brace, brace, EOS)
    assert draft.scores == (1.0,) * 7


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_plain_decoding_under_the_same_grammar(kind, do_sample):
    model, grammar = tiny_llama(vocab_size=MODEL_VOCAB), Grammar.from_regex(PATTERN)
    options = {"max_new_tokens": 12, "do_sample": do_sample, "seed": 3, "grammar": grammar}
    plain = Speculator(model, piece_tokenizer(), drafter="none").complete([1, 5, 6], **options)
    for drafter in (small(tiny_llama(seed=3), kind), mixed_with(small(tiny_llama(seed=3), kind))):
        output = Speculator(model, piece_tokenizer(), drafter=drafter, budget=7).complete([1, 5, 6], **options)
        assert output.tokens == plain.tokens
        assert text_of(output.tokens) in LANGUAGE


def test_unseeded_draws_under_a_grammar_are_judged_by_traversal_and_legal():
    model, grammar = tiny_llama(vocab_size=MODEL_VOCAB), Grammar.from_regex(PATTERN)
    speculator = Speculator(model, piece_tokenizer(), drafter=small(tiny_llama(seed=3), "sampled"), budget=7)
    for _ in range(6):
        tokens = speculator.complete([1, 5, 6], max_new_tokens=12, do_sample=True, grammar=grammar).tokens
        assert text_of(tokens) in LANGUAGE
