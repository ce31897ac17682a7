"""Grammars: what a text may look like, and which tokens may therefore come next.

Texts are described by a JSON schema, a regular expression or EBNF; xgrammar (extra ``grammar``) does the matching.
Knows a tokenizer's vocabulary; knows no model, no tree and no lane (a lane's place in its text is a `GrammarState`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from .grammar_state import CompiledGrammar
from .json_schema import refuse_unenforceable

#: JSON allows none of these inside a string, xgrammar most of them. The line feed, which it does not, stays for layouts
_CONTROL_BYTES = bytes(byte for byte in range(32) if byte != 10)

#: tokenizer -> what xgrammar made of its vocabulary, by what shapes it: a third of a second each at 49,152 tokens, the
#: same for every grammar
_vocabularies: WeakKeyDictionary[Any, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()


class Grammar:
    """What the generated text must look like, from the first generated token to the stop token.

    Made by `from_json_schema`, `from_regex` or `from_ebnf`; hand it to ``generate(..., grammar=...)``. One object may
    serve many requests and tokenizers: what it was compiled to is kept.

    Raises:
        ImportError: xgrammar is not installed; names the extra.
        ValueError: the description cannot be read, or would not be enforced in full; says where.
    """

    def __init__(self, kind: str, source: str, parsed: Any, absent: bytes = b"") -> None:
        self.kind = kind
        self.source = source
        self._absent = absent  # bytes that no text may hold, whatever ``parsed`` says
        self._parsed = parsed  # xgrammar's own Grammar
        self._compiled: dict[tuple[Any, ...], CompiledGrammar] = {}

    def __repr__(self) -> str:
        return f"Grammar.from_{self.kind.replace(' ', '_').lower()}({self.source!r})"

    @classmethod
    def from_json_schema(
        cls,
        schema: str | dict[str, Any] | bool | type,
        *,
        any_whitespace: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
    ) -> Grammar:
        """JSON that is valid for ``schema``; object keys come in the order of ``properties``.

        A schema with a keyword that could not be enforced is refused. ``oneOf`` is taken as ``anyOf`` where its
        branches overlap, and a ``pattern`` must match the whole string.

        Args:
            schema: JSON text, what ``json.loads`` makes of it, or a pydantic model class.
            any_whitespace: let the model choose white space. Off by default: a fixed layout leaves it less to decide,
                so that more tokens are known beforehand and cost no forward of their own, and no model pads for ever.
            indent: of the fixed layout, as for ``json.dumps``.
            separators: of the fixed layout, as for ``json.dumps``.
        """
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        if isinstance(schema, str):
            written = schema
            try:
                schema = json.loads(written)
            except json.JSONDecodeError as error:
                raise ValueError(f"the JSON schema {_shortened(written, 60)!r} is no JSON: {error}") from None
        refuse_unenforceable(schema)
        text = json.dumps(schema, ensure_ascii=False)
        layout = {"any_whitespace": any_whitespace, "indent": indent, "separators": separators}
        parsed = _read("JSON schema", _xgrammar().Grammar.from_json_schema, text, **layout)
        return cls("JSON schema", text, parsed, _CONTROL_BYTES)

    @classmethod
    def from_regex(cls, pattern: str) -> Grammar:
        """Texts that match a regular expression as a whole (no look-around, no back references)."""
        return cls("regex", pattern, _read("regular expression", _xgrammar().Grammar.from_regex, pattern))

    @classmethod
    def from_ebnf(cls, text: str) -> Grammar:
        """Texts of a context-free grammar in GBNF, the notation of llama.cpp and xgrammar; it starts at ``root``."""
        return cls("EBNF", text, _read("EBNF grammar", _xgrammar().Grammar.from_ebnf, text))

    def compile(self, tokenizer: Any, vocab_size: int, stop_tokens: Iterable[int] = ()) -> CompiledGrammar:
        """This grammar over the tokens of one model.

        Args:
            tokenizer: a tokenizer of transformers.
            vocab_size: of the model; ids that the tokenizer does not know are never allowed.
            stop_tokens: allowed where the text is complete, and nowhere else; the tokenizer's eos token when empty.

        Raises:
            ValueError: there is no tokenizer or no stop token, or no token can begin a text of the grammar.
        """
        if tokenizer is None:
            raise ValueError("a grammar is about text and needs the model's tokenizer: pass tokenizer=...")
        if not hasattr(tokenizer, "get_vocab"):
            raise ValueError(f"a grammar needs a tokenizer of transformers, got {type(tokenizer).__name__}")
        eos = getattr(tokenizer, "eos_token_id", None)
        stops = tuple(sorted(set(stop_tokens))) or (() if eos is None else (int(eos),))
        stops = tuple(token for token in stops if 0 <= token < vocab_size)
        if not stops:
            raise ValueError("a grammar ends its text with a stop token and there is none: give eos_token_id")
        key = (
            id(tokenizer),
            len(tokenizer),
            vocab_size,
            stops,
        )  # the value keeps the tokenizer, so the id stays its own
        if key not in self._compiled:
            xgrammar = _xgrammar()
            vocabulary = _vocabulary(xgrammar, tokenizer, vocab_size, stops, self._absent)
            # one thread: compiling takes milliseconds, and a pool of threads would outlive it
            compiler = xgrammar.GrammarCompiler(vocabulary, max_threads=1, cache_enabled=False)
            handle = _read(self.kind, compiler.compile_grammar, self._parsed)
            compiled = CompiledGrammar(xgrammar.GrammarMatcher, handle, vocab_size, frozenset(stops), tokenizer)
            if compiled.start().count(()) == 0:
                raise ValueError(
                    f"the {self.kind} grammar cannot be met: no token of the vocabulary can begin a text of it "
                    f"(grammar: {_shortened(self.source)})"
                )
            self._compiled[key] = compiled
        return self._compiled[key]


def _xgrammar() -> ModuleType:
    try:
        import xgrammar
    except ImportError as error:
        raise ImportError(f'grammars need xgrammar ({error}): pip install "branchwise[grammar]"') from error
    return xgrammar


def _vocabulary(xgrammar: ModuleType, tokenizer: Any, vocab_size: int, stops: tuple[int, ...], absent: bytes) -> Any:
    """The tokenizer as xgrammar sees it, less what it should not see.

    Special tokens are taken out: as text they would be letters of a string. So are tokens with a byte in ``absent``.
    """
    known = _vocabularies.setdefault(tokenizer, {})
    key = (len(tokenizer), vocab_size, stops, absent)
    if key not in known:
        info = _read("tokenizer", xgrammar.TokenizerInfo.from_huggingface, tokenizer, vocab_size=vocab_size,
                     stop_token_ids=list(stops))  # fmt: skip
        special = set(getattr(tokenizer, "all_special_ids", ()))
        special |= {number for number, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
        pieces = [
            b"" if token in special or not set(piece).isdisjoint(absent) else piece
            for token, piece in enumerate(info.decoded_vocab)
        ]
        # the pieces are bytes already, so their kind is RAW whatever the tokenizer's is
        known[key] = xgrammar.TokenizerInfo(
            pieces, vocab_size=vocab_size, stop_token_ids=list(stops), add_prefix_space=info.add_prefix_space
        )
    return known[key]


def _read(what: str, read: Any, *arguments: Any, **options: Any) -> Any:
    """Calls xgrammar; its errors become one line about ``what``, without the place in its source."""
    try:
        return read(*arguments, **options)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error).strip())
        reason = re.sub(r"^Check failed: \(.*?\) is false: ", "", reason)
        raise ValueError(f"the {what} cannot be used as a grammar: {_shortened(reason)}") from error


def _shortened(text: str, length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3] + "..."
