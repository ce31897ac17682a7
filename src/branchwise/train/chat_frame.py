"""What stands around a user's words and an answer, read off the tokenizer's own chat template.

Knows a template as text with a hole in it. Knows no model and no law.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: stands for the user's words while the template is looked at; no template trims or changes it
_MARK = "branchwise-user-turn"


@dataclass(frozen=True)
class ChatFrame:
    """A chat of one question and one answer.

    Attributes:
        before: text up to the user's words.
        after: tokens from the end of the user's words to the first of the answer; empty without a chat template, where
            the target simply continues the opener.
        stops: tokens that end an answer.
        silent: special tokens that have no place inside a question.
        sentence_ends: tokens whose text ends a sentence or a line.
    """

    before: str
    after: tuple[int, ...]
    stops: frozenset[int]
    silent: frozenset[int]
    sentence_ends: frozenset[int]

    @property
    def ends_by_token(self) -> bool:
        """Whether the question ends with one special token, as in most templates, and not with ordinary text."""
        return bool(self.after) and self.after[0] in self.silent

    @property
    def after_mark(self) -> frozenset[int]:
        """The token that ends a question, where one does."""
        return frozenset(self.after[:1]) if self.ends_by_token else frozenset()

    @classmethod
    def read(cls, tokenizer: Any, stop_tokens: Iterable[int]) -> ChatFrame:
        """The frame of a tokenizer's template, or the bare one where there is no template.

        Args:
            tokenizer: of the target.
            stop_tokens: what ends a text, as the model's generation config says.

        Raises:
            ValueError: the template drops or changes the user's words.
        """
        special = frozenset(tokenizer.all_special_ids)
        stops = frozenset(stop_tokens)
        if not stops and tokenizer.eos_token_id is not None:
            stops = frozenset([tokenizer.eos_token_id])
        ends = sentence_ends(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            bos = tokenizer.bos_token if getattr(tokenizer, "add_bos_token", False) else None
            return cls(bos or "", (), stops, special | stops, ends)
        message = [{"role": "user", "content": _MARK}]
        written = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        before, mark, after = written.partition(_MARK)
        if not mark or _MARK in after:
            raise ValueError(
                "the chat template does not write the user's words exactly once, so the target cannot be asked to "
                "write them; give texts with --text instead"
            )
        return cls(before, tuple(_encode(tokenizer, after)), stops, special | stops, ends)

    def prompt(self, tokenizer: Any, words: str, *, closed: bool) -> tuple[list[int], int]:
        """Token ids of the chat up to ``words`` (or up to the answer, if ``closed``), and how many come before them."""
        ids = _encode(tokenizer, self.before + words)
        alone = _encode(tokenizer, self.before)
        shared = 0
        while shared < min(len(ids), len(alone)) and ids[shared] == alone[shared]:
            shared += 1
        return (ids + list(self.after) if closed else ids), shared


def sentence_ends(tokenizer: Any) -> frozenset[int]:
    """Ids whose text ends with a full stop, a question or exclamation mark, or a line break."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=False)
    return frozenset(token for token, text in enumerate(texts) if text.rstrip("\"')").endswith((".", "?", "!", "\n")))


def _encode(tokenizer: Any, text: str) -> list[int]:
    # the template writes every special token itself
    return list(tokenizer(text, add_special_tokens=False).input_ids)
