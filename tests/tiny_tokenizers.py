"""Small real tokenizers, made on the spot: bytes, and words as sentencepiece writes them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

#: special tokens stand behind all others
SPECIAL = ("<s>", "</s>", "<|end|>")


def byte_tokenizer(merged: Sequence[bytes] = ()) -> PreTrainedTokenizerFast:
    """GPT-2's byte-level scheme: token i is byte i; tokens of several bytes, whole characters or not, follow.

    Args:
        merged: byte strings that are tokens of their own, from id 256 on.
    """
    letter_of = byte_letters()
    pieces = [letter_of[byte] for byte in range(256)] + ["".join(letter_of[b] for b in piece) for piece in merged]
    tokenizer = _without_encoder(pieces)
    tokenizer.decoder = decoders.ByteLevel()
    return _fast(tokenizer)


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in GPT-2's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def word_tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """Llama's scheme: U+2581 marks a space, the first space of a text is dropped, ``<0xE2>`` are single bytes."""
    tokenizer = _without_encoder(pieces)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _fast(tokenizer)


def metaspace_tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """T5's and older Llama conversions' scheme: one decoder that replaces U+2581 and drops it in front."""
    tokenizer = _without_encoder(pieces)
    tokenizer.decoder = decoders.Metaspace()
    return _fast(tokenizer)


def _without_encoder(pieces: Sequence[str]) -> Tokenizer:
    """Piece i is token i. Tests decode only, and choose the tokens themselves."""
    return Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token=pieces[0]))


def _fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
