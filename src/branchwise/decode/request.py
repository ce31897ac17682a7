"""What one lane is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..verify.grammar_state import CompiledGrammar
from ..verify.law import Sampler
from .stopping import StopRules


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt and everything that decides its output.

    Attributes:
        prompt: token ids without padding, at least one.
        sampler: how a law is made from logits.
        stop: what ends the text.
        seed: seed of the coins, or None for fresh entropy.
        return_index: which of several outputs for one prompt this is; part of the coins' key.
        padding: ids that stand before the prompt where processors and criteria expect transformers' padded rows.
        on_tokens: called with each run of emitted tokens as soon as it is final.
        keep_scores: keep raw logits and processed scores of every emitted token.
        grammar: what the text must look like, compiled for the model's vocabulary, or None.
        logprobs: keep the log-probability of every emitted token and of so many alternatives; None keeps nothing.
        budget: most nodes of its trees, root included, where the loop's own budget allows more; 1 is plain decoding
            without asking the drafter, None leaves it to the loop.
        target_probabilities: keep the target's probability of every drafted node in the records of the steps.
    """

    prompt: tuple[int, ...]
    sampler: Sampler
    stop: StopRules
    seed: int | None = None
    return_index: int = 0
    padding: tuple[int, ...] = ()
    on_tokens: Callable[[tuple[int, ...]], None] | None = None
    keep_scores: bool = False
    grammar: CompiledGrammar | None = None
    logprobs: int | None = None
    budget: int | None = None
    target_probabilities: bool = False

    def check(self, vocab_size: int, context_limit: int | None) -> None:
        """Raises ValueError for what cannot run, before anything does."""
        if not self.prompt:
            raise ValueError("the prompt is empty: give at least one token (for instance the tokenizer's bos token)")
        for index, token in enumerate(self.prompt):
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"prompt token {index} is {token}, outside the model's vocabulary of {vocab_size} ids; is this the "
                    "right tokenizer?"
                )
        if self.grammar is not None and self.grammar.vocab_size != vocab_size:
            raise ValueError(
                f"the grammar was compiled for {self.grammar.vocab_size} ids but the model has {vocab_size}"
            )
        if self.budget is not None and self.budget < 1:
            raise ValueError(
                f"a budget counts nodes, root included: it must be >= 1 (1 is plain decoding), got {self.budget}"
            )
        if self.stop.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be >= 1, got {self.stop.max_new_tokens}")
        if context_limit is not None and len(self.prompt) >= context_limit:
            raise ValueError(
                f"the prompt has {len(self.prompt)} tokens but the model's context ends at {context_limit}; shorten it "
                f"to at most {context_limit - 1}"
            )
