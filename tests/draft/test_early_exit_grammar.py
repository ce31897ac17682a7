"""The first layers as drafter under a grammar: nothing illegal is drafted, forced text is, and the text is the same."""

from __future__ import annotations

import pytest

from branchwise import Speculator
from branchwise.draft import EarlyExitDrafter
from branchwise.target import HuggingFaceTarget
from branchwise.verify import Grammar
from grammar_rig import LANGUAGE, MODEL_VOCAB, PATTERN, legal_by_list, piece_tokenizer, text_of, token_of
from small_model_rig import mixed_with, paths_of
from zoo import tiny_llama

PROMPT = [1, 5, 6]


def complete(grammar, drafter=None, **options):
    model = tiny_llama(vocab_size=MODEL_VOCAB, num_hidden_layers=3)
    target = HuggingFaceTarget(model)
    made = "none" if drafter is None else drafter(target)
    speculator = Speculator(target, piece_tokenizer(), drafter=made, budget=9)
    return speculator.complete(PROMPT, max_new_tokens=12, grammar=grammar, **options)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("mode", ["reuse", "recompute"])
def test_the_text_is_that_of_plain_decoding_under_the_same_grammar(mode, do_sample):
    grammar = Grammar.from_regex(PATTERN)
    options = {"do_sample": do_sample, "seed": 3}
    plain = complete(grammar, **options)
    for wrap in (lambda made: made, mixed_with):
        output = complete(
            grammar, lambda target, w=wrap: w(EarlyExitDrafter(target, exit_layer=2, mode=mode)), **options
        )
        assert output.tokens == plain.tokens
        assert text_of(output.tokens) in LANGUAGE


def test_nothing_illegal_is_drafted():
    output = complete(
        Grammar.from_regex(PATTERN), lambda target: EarlyExitDrafter(target, exit_layer=2), do_sample=False
    )
    paths = paths_of(output.records[0].draft.tree)
    assert len(paths) > 2
    for path in paths:
        assert all(token in legal_by_list(path[:depth]) for depth, token in enumerate(path)), path


def test_forced_text_is_run_with_its_root_and_accepted():
    grammar = Grammar.from_ebnf('root ::= "x" "x" "x" "x" "{" "{"')
    plain = complete(grammar, do_sample=False)
    output = complete(grammar, lambda target: EarlyExitDrafter(target, exit_layer=2, depth=2), do_sample=False)
    assert output.tokens == plain.tokens
    x, brace = token_of("x"), token_of("{")
    assert output.records[0].draft.tree.tokens[1:7] == (x, x, x, x, brace, brace)
    assert output.steps == 1
