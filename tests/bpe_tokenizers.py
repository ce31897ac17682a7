"""Small byte-pair tokenizers that encode and decode, trained on the spot: two schemes, any size."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = (
    "The quick brown fox jumps over the lazy dog. It was the best of times, it was the worst of times; the river ran "
    "slowly past the old mill, and nobody who lived there could say how long it had stood. def add(a, b):\n    return "
    "a + b\n\nfor name in names:\n    print(name, len(name))\n日本語の文章です。 naïve café, größer: 😀 and 😃 again. "
    "What floats on water? Bread, apples, very small rocks. Consider the following: one, two, three, four. "
)


@cache
def byte_level_bpe(vocab_size: int, text: str = TEXT) -> PreTrainedTokenizerFast:
    """GPT-2's scheme: words with their leading space, any bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", additional_special_tokens=["<|user|>"]
    )


@cache
def spaced_bpe(vocab_size: int, text: str = TEXT) -> PreTrainedTokenizerFast:
    """Llama's scheme: U+2581 for spaces and in front of the text, single bytes for unknown characters, a bos token."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>", *octets], show_progress=False
    )
    # words one by one, so that no token spans two of them
    tokenizer.train_from_iterator([f"▁{word}" for word in text.split() if word.isascii()], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    return fast
