"""Orders under a grammar: checked and compiled before the first token, with the stop token that ends its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..verify.grammar import Grammar
from .orders import Order

#: processors of transformers that write tokens whatever stands before: the grammar would forbid them at the last moment
_FORCING = ("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor")


def under_grammar(orders: Sequence[Order], grammar: Grammar, vocab_size: int) -> list[Order]:
    """The orders, each held to ``grammar``.

    The text ends with one of the request's stop tokens, or with the tokenizer's eos token where the request has none.

    Args:
        orders: what was asked for, tokenizer included.
        grammar: one for all; every lane has its own place in it.
        vocab_size: of the model.

    Raises:
        ValueError: not a `Grammar`, no tokenizer, no stop token, a forced token, or no text is possible.
    """
    if not isinstance(grammar, Grammar):
        raise ValueError(
            f"grammar must be a branchwise.Grammar (Grammar.from_json_schema, from_regex or from_ebnf), got "
            f"{type(grammar).__name__}"
        )
    return [_under_grammar(order, grammar, vocab_size) for order in orders]


def _under_grammar(order: Order, grammar: Grammar, vocab_size: int) -> Order:
    request = order.request
    for processor in request.sampler.processors:
        if type(processor).__name__ in _FORCING:
            raise ValueError(
                f"{type(processor).__name__} writes a token whatever the grammar says; leave forced_bos_token_id and "
                "forced_eos_token_id unset"
            )
    compiled = grammar.compile(order.tokenizer, vocab_size, request.stop.stop_tokens)
    stop = replace(request.stop, stop_tokens=request.stop.stop_tokens | compiled.stop_tokens)
    return replace(order, request=replace(request, grammar=compiled, stop=stop))
