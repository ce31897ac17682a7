"""A folder as `--model` takes it: a random two-layer Llama and a tokenizer of single characters, made on the spot."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|system|>", "<|assistant|>")
CHARACTERS = string.ascii_lowercase + "ABCDEFGHIJ" + string.digits + " .,!?:\n"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def character_tokenizer(chat: bool = False, more: str = "") -> PreTrainedTokenizerFast:
    """One token per character, those in ``more`` as well; no spaces between them when decoded."""
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *CHARACTERS, *more))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(SPECIAL[3:]),
    )
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tiny_model(folder: Path, *, chat: bool = False, more: str = "", **generation: object) -> Path:
    """Saves model and tokenizer; ``generation`` are the checkpoint's own generation defaults."""
    vocabulary = len(SPECIAL) + len(CHARACTERS) + len(more)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.4,
    )
    torch.manual_seed(5)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # a text that ends at once, or is all <unk>, tests nothing
        model.lm_head.weight[: len(SPECIAL)] = 0
        model.lm_head.weight[: len(SPECIAL), 0] = -5
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0, **generation)
    model.save_pretrained(folder)
    character_tokenizer(chat, more).save_pretrained(folder)
    return folder
