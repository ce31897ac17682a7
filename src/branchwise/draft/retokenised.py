"""One lane's text in two tokenizations, kept in step token by token.

Knows two tokenizers and where a text may be cut. Knows no model and no tree.

Only the end of the text is read again and again. Before the anchor both tokenizations are final; it stands in front of
a word, where neither tokenizer lets a token reach across:

    target tokens   ... |The| quick| bro|wn|  fox| ju|mps|        last ones may be half a character
    text                 ...  The quick brown| fox jumps
    own tokens      ... |The| qu|ick| brown  | fox| jump|s|       encoded anew whenever the text grows
                                             ^ anchor
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: the anchor moves on when the end behind it has more target tokens than this, and leaves so many behind
LONGEST_END, SHORTEST_END = 64, 16
#: places that are tried for it, from the end backwards
TRIES = 32
#: stands before a text that is encoded from its middle: some tokenizers put a space in front of what they are given
GUARD = "a"
#: what a decoder writes for half a character
HALF = "\ufffd"


class TextEncoder:
    """One tokenizer, for pieces from the middle of a text.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._guard = self._encode(GUARD)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode(self, text: str, at_start: bool) -> list[int] | None:
        """The tokens of a piece, or None when its first token would reach across its border."""
        if at_start:
            return self._encode(text)
        tokens = self._encode(GUARD + text)
        n = len(self._guard)
        return tokens[n:] if tokens[:n] == self._guard else None

    def text(self, tokens: Sequence[int], before: Sequence[int] = ()) -> str | None:
        """The text of tokens that follow others; None when a character is cut by the border between them."""
        whole, first = self._decode([*before, *tokens]), self._decode(before)
        return whole[len(first) :] if whole.startswith(first) else None

    def _decode(self, tokens: Sequence[int]) -> str:
        if not tokens:
            return ""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)


class Retokenised:
    """The lane's committed text, in the target's tokens as they are and in the drafter's own.

    Args:
        own: the drafter's tokenizer.
        target: the target's.
        tokens: the prompt.

    Attributes:
        own_tokens: the text in the drafter's tokens, at least one; half a character at the end is left out.
        end: target tokens behind the anchor.
        end_text: their text, without half a character at the end.
        before: the target token in front of the anchor, if there is one.
        is_cut: whether half a character was left out.
    """

    def __init__(self, own: TextEncoder, target: TextEncoder, tokens: Sequence[int]) -> None:
        self._own, self._target = own, target
        self.count = 0
        self.before: list[int] = []
        self._frozen: list[int] = self._first(own.tokenizer)
        self._own_end: list[int] = []
        self.end: list[int] = []
        self.end_text = ""
        self.is_cut = False
        self.extend(tokens)

    @staticmethod
    def _first(tokenizer: Any) -> list[int]:
        """The token that the drafter's texts begin with, if any."""
        whole = tokenizer.encode(GUARD)
        bos = tokenizer.bos_token_id
        return [bos] if bos is not None and whole[:1] == [bos] else []

    @property
    def at_start(self) -> bool:
        """Whether the anchor still stands before the first token."""
        return not self.before

    @property
    def own_tokens(self) -> list[int]:
        tokens = [*self._frozen, *self._own_end]
        return tokens or [self._own.tokenizer.eos_token_id or 0]

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes committed target tokens in."""
        self.count += len(tokens)
        self.end.extend(tokens)
        self._read()
        if len(self.end) > LONGEST_END:
            self._move_anchor()

    def _read(self) -> None:
        text = self._target.text(self.end, self.before) or ""
        self.end_text = text.rstrip(HALF)
        self.is_cut = len(self.end_text) < len(text)
        self._own_end = self._own.encode(self.end_text, self.at_start) or []

    def _move_anchor(self) -> None:
        """Looks for the last place near the end where both tokenizations have a border before a word."""
        last = len(self.end) - SHORTEST_END
        for index in range(last, max(0, last - TRIES), -1):
            head = self._target.text(self.end[:index], self.before)
            if head is None or not self._is_word_border(len(head)):
                continue
            before = self._own.encode(head, self.at_start)
            behind = self._own.encode(self.end_text[len(head) :], False)
            if before is None or behind is None or before + behind != self._own_end:
                continue
            self._frozen += before
            self.before = self.end[index - 1 : index]
            self.end = self.end[index:]
            self._read()
            return

    def _is_word_border(self, at: int) -> bool:
        around = self.end_text[at - 1 : at + 2]
        return len(around) == 3 and around[1] == " " and not around[0].isspace() and not around[2].isspace()
