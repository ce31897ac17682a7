"""What tests of grammars share: a vocabulary of a few pieces, a language small enough to be listed, and drafters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

#: token i + 3 is piece i; 0 to 2 are special, 22 to 24 are special and stand behind, the model's ids end at 36
PIECES = ("a", "b", "x", "1", "2", "ab", "ba", "abx", "12", "x1", "bb", "{", "}", '"', ":", "a1", "2x", " ", ",")
SPECIAL = ("<unk>", "<s>", "</s>")
EXTRA = ("<|one|>", "<|two|>", "<|three|>")
UNK, BOS, EOS = 0, 1, 2
MODEL_VOCAB = 37

#: a finite language over the first five letters; "ab" and "a" "b" are two ways to write the same text
PATTERN = "(a|ab|b)([12]{2,3}|bb)(x1?x)?"
LANGUAGE = frozenset(
    text
    for length in range(1, 9)
    for text in map("".join, itertools.product("abx12", repeat=length))
    if re.fullmatch(PATTERN, text)
)


def piece_tokenizer() -> PreTrainedTokenizerFast:
    """Pieces are written one after the other, nothing between them."""
    vocabulary = {piece: number for number, piece in enumerate((*SPECIAL, *PIECES))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in EXTRA])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def piece(token: int) -> str:
    return PIECES[token - len(SPECIAL)]


def token_of(text: str) -> int:
    return PIECES.index(text) + len(SPECIAL)


def text_of(tokens: Sequence[int]) -> str:
    return "".join(piece(token) for token in tokens if token != EOS)


def legal_by_list(tokens: Sequence[int]) -> set[int]:
    """The oracle: a token is legal if some text of the language goes on that way, the stop token if the text is one."""
    if any(not len(SPECIAL) <= token < len(SPECIAL) + len(PIECES) for token in tokens):
        return set()  # past a stop token, or broken by another special one
    text = text_of(tokens)
    legal = {
        token
        for token in range(len(SPECIAL), len(SPECIAL) + len(PIECES))
        if any(member.startswith(text + piece(token)) for member in LANGUAGE)
    }
    return legal | {EOS} if text in LANGUAGE else legal
