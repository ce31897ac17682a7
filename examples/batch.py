"""Several prompts at once: every row has a tree of its own, and the text it would have alone."""

import sys

from branchwise import Speculator
from branchwise.hub import load

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
prompts = ["one two three one two", "the cat sat on the", "a, b, c, a, b,"]
batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
output = Speculator(model, tokenizer).generate(
    **batch, max_new_tokens=24, do_sample=False, return_dict_in_generate=True
)
for prompt, generation in zip(prompts, output.branchwise, strict=True):
    print(f"{prompt}|{generation.text!r}  ({generation.tokens_per_step:.2f} tokens per step)")
