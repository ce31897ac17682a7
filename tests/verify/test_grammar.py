"""Grammars and a lane's place in one: masks against a listed language, roll-back against replay, refusals by name."""

from __future__ import annotations

import json
import math
import random
import sys

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as own

from branchwise.tree import TokenTree
from branchwise.verify import DraftTree, Grammar, GrammarState, LawMaker, Sampler, TreeLaw
from grammar_rig import BOS, EOS, LANGUAGE, MODEL_VOCAB, PATTERN, legal_by_list, piece_tokenizer, text_of, token_of
from tiny_tokenizers import byte_tokenizer

TOKENIZER = piece_tokenizer()


def start(grammar: Grammar | None = None) -> GrammarState:
    return (grammar or Grammar.from_regex(PATTERN)).compile(TOKENIZER, MODEL_VOCAB).start()


def legal(state: GrammarState, path: tuple[int, ...] = ()) -> set[int]:
    mask = state.mask(path)
    assert mask is not None and mask.shape == (MODEL_VOCAB,) and mask.dtype == torch.bool
    return set(mask.nonzero()[:, 0].tolist())


def random_walks(count: int, seed: int = 0) -> list[list[int]]:
    walk = random.Random(seed)
    walks = []
    for _ in range(count):
        tokens: list[int] = []
        while EOS not in tokens:
            tokens.append(walk.choice(sorted(legal_by_list(tokens))))
        walks.append(tokens)
    return walks


def same_place(one: GrammarState, other: GrammarState) -> bool:
    """Whether two states cannot be told apart: the matcher's own description, and every mask two tokens deep."""
    if one.is_over or other.is_over:
        return one.is_over and other.is_over and one.tokens == other.tokens
    one.mask(()), other.mask(())  # both matchers at the committed tokens
    told = [state._matcher._debug_print_internal_state() for state in (one, other)]
    paths = [(), *((token,) for token in legal(one))]
    return told[0] == told[1] and all(_equal(one.mask(path), other.mask(path)) for path in paths)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other is None or (one is not None and other is not None and torch.equal(one, other))


# masks


def test_masks_are_those_of_the_listed_language() -> None:
    state = start()
    places = {tuple(walk[:depth]) for walk in random_walks(150) for depth in range(len(walk))}
    assert len(places) > 80
    for path in sorted(places, key=lambda path: hash(path)):  # far jumps between paths
        assert legal(state, path) == legal_by_list(path)
        assert state.legal(path) == sorted(legal_by_list(path))
        assert state.count(path) == len(legal_by_list(path))


def test_committed_tokens_and_a_path_are_one_text() -> None:
    for walk in random_walks(25, seed=3):
        for cut in range(len(walk)):
            state = start()
            state.advance(walk[:cut])
            for depth in range(cut, len(walk)):
                assert legal(state, tuple(walk[cut:depth])) == legal_by_list(walk[:depth])


def test_a_state_after_visits_to_any_paths_is_the_replay_of_what_was_committed() -> None:
    walk = random.Random(7)
    for tokens in random_walks(25, seed=1):
        state = start()
        done = 0
        while done < len(tokens):
            for _ in range(6):  # right paths, wrong ones, and ones that end in the middle
                path = [walk.randrange(-2, MODEL_VOCAB + 3) for _ in range(walk.randrange(3))]
                state.allows((*tokens[done : done + walk.randrange(3)], *path), walk.randrange(MODEL_VOCAB))
            step = walk.randrange(1, 4)
            state.advance(tokens[done : done + step])
            done += step
            replay = start()
            for token in tokens[:done]:
                replay.advance([token])
            assert same_place(state, replay)


def test_dead_paths_and_paths_past_the_stop_token_say_nothing() -> None:
    state = start()
    a, x, one, two = (token_of(text) for text in ("a", "x", "1", "2"))
    for path in [(x,), (x, a), (a, x), (a, 99), (a, -1), (a, one, two, EOS), (a, one, two, EOS, a)]:
        assert state.mask(path) is None
        assert not any(state.allows(path, token) for token in range(MODEL_VOCAB))
        assert state.count(path) == 0 and state.legal(path) == [] and state.forced(path) is None
        assert state.ahead(path) is None
    assert state.allows((a, one, two), EOS)
    assert not state.allows((), MODEL_VOCAB) and not state.allows((), -1)


def test_illegal_tokens_are_not_committed() -> None:
    state = start()
    a, one, x = token_of("a"), token_of("1"), token_of("x")
    with pytest.raises(ValueError, match=r"after 0 others break the grammar"):
        state.advance([a, one, x])
    assert state.tokens == []
    assert same_place(state, start())
    state.advance([a, one])
    assert legal(state) == legal_by_list([a, one])


def test_lanes_of_one_grammar_do_not_disturb_each_other() -> None:
    compiled = Grammar.from_regex(PATTERN).compile(TOKENIZER, MODEL_VOCAB)
    one, other = compiled.start(), compiled.start()
    one.advance([token_of("a")])
    other.mask((token_of("b"), token_of("bb")))
    assert legal(one) == legal_by_list([token_of("a")])
    assert legal(other) == legal_by_list([])


def test_forced_tokens_and_likely_ones() -> None:
    state = start(Grammar.from_ebnf('root ::= "12" "bb" ("x" | "a") "2"'))
    one, two, both, bb, a = (token_of(text) for text in ("1", "2", "12", "bb", "a"))
    assert legal(state) == {one, both} and state.forced(()) is None
    assert state.ahead(()) == both, "the longest token that fits"
    assert state.ahead((both,)) == bb
    assert state.forced((one,)) == two == state.ahead((one,))
    assert state.ahead((both, bb)) is None, "two texts are possible here"
    assert state.forced((both, bb)) is None
    assert state.forced((both, bb, a)) == two
    assert state.forced((both, bb, a, two)) == EOS


def test_special_tokens_and_ids_beyond_the_tokenizer_are_never_text() -> None:
    free = start(Grammar.from_ebnf(r"root ::= [^\n]*"))
    assert legal(free) == {EOS, *range(3, 22)}


def test_several_stop_tokens() -> None:
    compiled = Grammar.from_regex("ab").compile(TOKENIZER, MODEL_VOCAB, [EOS, 24])
    state = compiled.start()
    state.advance([token_of("ab")])
    assert legal(state) == {EOS, 24}
    state.advance([24])
    assert state.is_over


def test_bytes_of_a_character_are_tokens_of_their_own() -> None:
    tokenizer = byte_tokenizer([b"\xe2\x82", "é€".encode()])
    state = Grammar.from_regex("é€|ê").compile(tokenizer, 300).start()
    assert state.legal(()) == [0xC3, 257]
    assert state.legal((0xC3,)) == [0xA9, 0xAA]
    assert state.legal((0xC3, 0xA9)) == [0xE2, 256]
    assert state.forced((0xC3, 0xA9, 256)) == 0xAC


# making grammars


def test_compiled_grammars_are_kept() -> None:
    grammar = Grammar.from_regex(PATTERN)
    compiled = grammar.compile(TOKENIZER, MODEL_VOCAB)
    assert grammar.compile(TOKENIZER, MODEL_VOCAB) is compiled
    assert grammar.compile(TOKENIZER, MODEL_VOCAB, [EOS]) is compiled
    assert grammar.compile(TOKENIZER, MODEL_VOCAB, [EOS, BOS]) is not compiled
    assert grammar.compile(TOKENIZER, MODEL_VOCAB + 1) is not compiled


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    for make in (Grammar.from_regex, Grammar.from_ebnf, Grammar.from_json_schema):
        with pytest.raises(ImportError, match=r'pip install "branchwise\[grammar\]"'):
            make("{}")


@pytest.mark.parametrize(
    ("make", "text", "says"),
    [
        (
            Grammar.from_regex,
            "a(b",
            "regular expression cannot be used as a grammar: Regex parsing error at position 4",
        ),
        (Grammar.from_regex, r"(a)\1", "Backreference is not supported"),
        (Grammar.from_ebnf, 'x ::= "a"', 'EBNF grammar cannot be used as a grammar: .* "root" is not found'),
        (Grammar.from_ebnf, "root ::= foo", '"foo" is not defined'),
        (Grammar.from_json_schema, "{", "JSON schema '{' is no JSON"),
        (Grammar.from_json_schema, "3", "JSON schema cannot be used as a grammar"),
        (Grammar.from_json_schema, "false", "JSON schema cannot be used as a grammar: .*cannot accept any value"),
        (Grammar.from_json_schema, {"type": "integer", "minimum": 5, "maximum": 3}, "minimum greater than maximum"),
        (Grammar.from_json_schema, {"type": "nonsense"}, 'Unsupported type "nonsense"'),
    ],
)
def test_what_cannot_be_read_is_one_line_about_it(make, text, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make(text)
    assert "\n" not in str(caught.value) and ".cc:" not in str(caught.value)


@pytest.mark.parametrize("text", ['root ::= root "a"', 'root ::= "€"'])
def test_what_no_text_can_meet_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be met: no token of the vocabulary can begin"):
        Grammar.from_ebnf(text).compile(TOKENIZER, MODEL_VOCAB)


def test_what_compiling_needs() -> None:
    grammar = Grammar.from_regex("a")
    with pytest.raises(ValueError, match="needs the model's tokenizer"):
        grammar.compile(None, MODEL_VOCAB)
    endless = piece_tokenizer()
    endless.eos_token = None
    with pytest.raises(ValueError, match="give eos_token_id"):
        grammar.compile(endless, MODEL_VOCAB)
    with pytest.raises(ValueError, match="tokenizer of transformers, got list"):
        grammar.compile(["a", "b"], MODEL_VOCAB, [2])


# JSON schemas


def json_accepts(schema: object, value: object, **layout: object) -> bool:
    state = Grammar.from_json_schema(schema, **layout).compile(BYTES, 259).start()
    separators = layout.get("separators")
    text = json.dumps(value, ensure_ascii=False, indent=layout.get("indent"), separators=separators)
    try:
        state.advance([*text.encode(), EOS_BYTE])
    except ValueError:
        return False
    return True


BYTES = byte_tokenizer()
EOS_BYTE = 257
PERSON = {
    "type": "object",
    "title": "anything",
    "properties": {"name": {"type": "string", "minLength": 1}, "not": {"type": "integer", "multipleOf": 5}},
    "required": ["name", "not"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (PERSON, {"name": "Ann é", "not": 15}, {"name": "", "not": 15}),
        (PERSON, {"name": "A", "not": 0}, {"name": "A", "not": 7}),
        ({"type": "string", "enum": ["a", "b"]}, "a", "c"),
        ({"type": ["integer", "string"], "minimum": 3}, 4, 2),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, "x"),
        (
            {"type": "object", "anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}]},
            {"a": 1},
            {"a": "x"},
        ),
        ({"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": "boolean"}}}, [True], [1]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, [1, 2], [1]),
        ({"type": "string", "pattern": "^a+$"}, "aa", "b"),
        ({"type": "number", "minimum": 2.5, "exclusiveMaximum": 4}, 3.0, 4.5),
        ({"type": "object", "propertyNames": {"pattern": "^x+$"}}, {"xx": 1}, {"y": 1}),
        ({"properties": {"a": {"type": "integer"}}, "uniqueItems": False}, {"a": 1}, {"a": "x"}),
    ],
)
def test_schemas_hold(schema: dict, valid: object, invalid: object) -> None:
    assert json_accepts(schema, valid)
    assert not json_accepts(schema, invalid)


@pytest.mark.parametrize("layout", [{}, {"indent": 1}, {"any_whitespace": True}], ids=str)
def test_strings_hold_no_control_characters(layout: dict) -> None:
    state = Grammar.from_json_schema({"type": "string"}, **layout).compile(BYTES, 259).start()
    state.advance(b'"a')
    assert not any(state.allows((), byte) for byte in range(32))
    assert all(state.allows((), byte) for byte in range(32, 128))


def test_layouts() -> None:
    value = {"name": "A", "not": 5}
    assert json_accepts(PERSON, value, indent=2)
    assert json_accepts(PERSON, value, separators=(",", ":"))
    assert json_accepts(PERSON, value, any_whitespace=True, indent=1)
    assert json_accepts(json.dumps(PERSON), value)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"not": {"type": "integer"}}, "at #: 'not' is not supported"),
        ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, "at #/items: 'uniqueItems'"),
        ({"if": {"const": 1}, "then": {"const": 2}}, "'then' is not supported|'if' is not supported"),
        ({"type": "array", "contains": {"const": 3}}, "'contains' is not supported"),
        ({"$ref": "http://elsewhere/x"}, "leaves the schema"),
        ({"properties": {"a": {"type": "number", "multipleOf": 5}}}, "at #/properties/a: 'multipleOf' works for"),
        ({"minimum": 3}, "'minimum' has no effect without \"type\": 'number'"),
        ({"type": "string", "minItems": 3}, "'minItems' has no effect without \"type\": 'array'"),
        ({"type": "string", "enum": ["a", 1]}, "'enum' decides alone, \\['type'\\] beside it"),
        ({"type": "integer", "const": True}, "'const' decides alone"),
        ({"type": "integer", "anyOf": [{"minimum": 3}]}, "'anyOf' decides alone"),
        ({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}}, "'\\$ref' decides alone"),
        ({"allOf": [{"type": "integer"}, {"type": "number"}]}, "merge them into one"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "'maxLength' beside 'pattern'"),
        ({"type": "string", "pattern": "a", "format": "uuid"}, "'pattern' beside 'format'"),
        ({"type": "object", "required": ["q"]}, "'required' names \\['q'\\]"),
        ({"type": "string", "pattern": 'a"'}, "names a character that JSON escapes"),
        ({"type": "string", "pattern": "[a\\u0022]"}, "names a character that JSON escapes"),
        ({"type": "object", "patternProperties": {"a\t": {}}}, "names a character that JSON escapes"),
        ({"$defs": {"x": {"not": {}}}, "$ref": "#/$defs/x"}, "at #/\\$defs/x: 'not'"),
    ],
)
def test_keywords_that_would_be_left_out_are_refused(schema: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Grammar.from_json_schema(schema)


# laws

#      0
#     / \
#  1:a   2:ab
#   |     |
#  3:b   4:12     nodes 2 and 3 end the same text
#   |     |
#  5:12  6:</s>
TREE = TokenTree(
    [BOS, token_of("a"), token_of("ab"), token_of("b"), token_of("12"), token_of("12"), EOS], [-1, 0, 0, 1, 2, 3, 4]
)
DRAFT = DraftTree.deterministic(TREE)
LOGITS = torch.randn(len(TREE), MODEL_VOCAB, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3


def law_under_grammar(do_sample: bool, processors: list[object], logits: Tensor = LOGITS) -> TreeLaw:
    return LawMaker(Sampler(do_sample, processors), start()).laws(DRAFT, [BOS], logits)


def own_path(node: int) -> list[int]:
    return [TREE.tokens[i] for i in TREE.path(node)[1:]]


def masked_by_list(node: int, scores: Tensor) -> Tensor:
    allowed = sorted(legal_by_list(own_path(node)))
    masked = torch.full_like(scores, -math.inf)
    masked[allowed] = scores[allowed]
    return masked


@pytest.mark.parametrize("do_sample", [False, True])
def test_laws_are_masked_on_the_node_s_own_prefix(do_sample: bool) -> None:
    before = LOGITS.clone()
    law = law_under_grammar(do_sample, [])
    for node in range(6):
        expected = masked_by_list(node, LOGITS[node])
        if do_sample:
            torch.testing.assert_close(law(node), expected.softmax(0), rtol=0, atol=0)
        else:
            assert int(law(node).argmax()) == int(expected.argmax())
    assert torch.equal(before, LOGITS), "the target's logits are not written to"
    assert torch.equal(law.logits(2), LOGITS[2].to(law.logits(2).dtype)), "raw logits stay raw"


def test_truncation_is_over_legal_tokens() -> None:
    processors = [own.TemperatureLogitsWarper(0.7), own.TopKLogitsWarper(2), own.TopPLogitsWarper(0.99)]
    law = law_under_grammar(True, processors)
    for node in range(6):
        scores = masked_by_list(node, LOGITS[node])[None]
        for processor in processors:
            scores = processor(torch.zeros(1, 1, dtype=torch.long), scores)
        torch.testing.assert_close(law(node), scores[0].softmax(0), rtol=0, atol=1e-15)
        support = set(law(node).nonzero()[:, 0].tolist())
        assert support and support <= legal_by_list(own_path(node)) and len(support) <= 2


def test_no_processor_makes_an_illegal_token_legal() -> None:
    class Levels(own.LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            assert (scores == -math.inf).any(), "it sees what is illegal"
            return torch.zeros_like(scores)

    law = law_under_grammar(True, [Levels()])
    for node in range(6):
        assert set(law(node).nonzero()[:, 0].tolist()) == legal_by_list(own_path(node))


def test_past_the_stop_token_the_law_is_the_model_s() -> None:
    torch.testing.assert_close(law_under_grammar(True, [])(6), LOGITS[6].softmax(0), rtol=0, atol=0)


@pytest.mark.parametrize("do_sample", [False, True])
def test_processors_that_forbid_what_is_legal_raise(do_sample: bool) -> None:
    class BanLegal(own.LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores.masked_fill(scores > -math.inf, -math.inf)

    with pytest.raises(ValueError, match="forbade every token that the grammar allows after node 1"):
        law_under_grammar(do_sample, [BanLegal()])(1)


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_text_that_cannot_be_completed_raises(do_sample: bool) -> None:
    state = start(Grammar.from_ebnf('root ::= "a" "€"'))
    draft = DraftTree.deterministic(TokenTree([BOS, token_of("a")], [-1, 0]))
    law = LawMaker(Sampler(do_sample), state).laws(draft, [BOS], LOGITS[:2])
    law(0)
    with pytest.raises(ValueError, match="leaves no token of this vocabulary after node 1"):
        law(1)


def test_the_rig_s_language_is_worth_testing() -> None:
    assert 50 < len(LANGUAGE) < 500
    assert all(text_of(walk) in LANGUAGE for walk in random_walks(20))
